"""Requests as rl-rock 1.11 sends them."""

V1 = "/apis/envs/sandbox/v1"
START = {
    **{"image": "python:3.11", "image_os": "linux", "memory": "96m", "cpus": 1, "disk": "8m"},
    **{"auto_clear_time": 5, "auto_clear_time_minutes": 5, "startup_timeout": 180},
    **{"num_gpus": None, "accelerator_type": None, "registry_username": None},
    **{"registry_password": None, "use_kata_runtime": False, "limit_cpus": None},
    **{"sandbox_id": None, "auto_archive_seconds": None, "auto_delete_seconds": None},
}


def ask(http, path, /, **body):
    answer = http.post(f"{V1}/{path}", json=body)
    assert answer.status_code == 200
    return answer.json()


def status_of(http, id):
    path = f"{V1}/get_status?sandbox_id={id}&include_all_states=False"
    return http.get(path).json()


def started(http, **more):
    """The id of one that runs."""
    id = ask(http, "start_async", **START | more)["result"]["sandbox_id"]
    until_alive(http, id)
    return id


def until_alive(http, id):
    while not (status := status_of(http, id)["result"])["is_alive"]:
        assert "failed" not in str(status["status"]), status


def refusal(answer):
    """What a request was refused with, as a bad one."""
    assert (answer["status"], answer["result"]["code"]) == ("Failed", 4000), answer
    return answer["error"]
