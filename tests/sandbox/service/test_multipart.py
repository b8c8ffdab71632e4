"""Forms with files: what is sent is what is read, and nothing else is."""

import pytest

from ale_jax.sandbox.service.uploads import MAX_PARTS, Part, parse_form
from tests.rows import each_row

TYPE = "multipart/form-data; boundary=b"
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="a/b"; filename="x \\" y"\r\n'
    b"Content-Type: text/plain\r\n\r\n1\r\n--c\r\n\r\n--b\r\n"
    b'content-disposition: form-data; name="e"\r\n\r\n\r\n--b--\r\n'
)


def test_parts_are_read_as_they_were_written():
    assert parse_form(TYPE, FORM) == [Part("a/b", 'x " y', b"1\r\n--c\r\n"), Part("e", "", b"")]
    assert parse_form('multipart/form-data; boundary="b"', b"--b--") == []


@each_row(
    "kind, body",
    [
        ("application/json", FORM),
        ("multipart/form-data", FORM),
        (TYPE, b""),
        (TYPE, FORM[1:]),
        (TYPE, FORM.replace(b"--b--", b"")),
        (TYPE, b"--b\r\n\r\ndata\r\n--b--"),
        (TYPE, FORM.replace(b"--c", b'--bc\r\nContent-Disposition: form-data; name="y"\r\n\r\nz')),
        (TYPE, b'--b\r\nContent-Disposition: form-data; name="x"\r\n--b--'),
    ],
)
def test_what_is_no_form_is_refused(kind, body):
    with pytest.raises(ValueError, match="form"):
        parse_form(kind, body)


def test_a_form_has_so_many_parts_and_no_more():
    part = b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n1\r\n'
    assert len(parse_form(TYPE, part * MAX_PARTS + b"--b--")) == MAX_PARTS
    with pytest.raises(ValueError, match="send it in parts"):
        parse_form(TYPE, part * (MAX_PARTS + 1) + b"--b--")


def test_httpx_writes_forms_that_are_read(memory, http):
    http.post("/v1/sandboxes", json={})
    files = {"x": ("file", b"\0\r\n--"), "%C3%A4": ("file", b"")}
    assert http.post("/v1/sandboxes/box-0/files", files=files).status_code == 204
    assert memory.pool.calls[0][2] == {"files": {"x": b"\0\r\n--", "ä": b""}}
