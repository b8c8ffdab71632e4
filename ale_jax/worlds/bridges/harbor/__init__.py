"""Task folders in the format of harbor, schema 1.4 and before, and of terminal-bench.

    NAME/task.toml, instruction.md, environment/, solution/, tests/, steps/
    NAME/task.yaml, solution.sh, run-tests.sh, tests/, Dockerfile

A folder is read completely before its task is played, and what cannot be played as it says is
refused by file and field. `settings` and `machine` read the tables of task.toml, field by field
(`fields`), `legacy` task.yaml, `dockerfile` a Dockerfile, `trees` files; `task` puts a task
together (`records`). `place` prepares its sandbox, `judging` judges what a policy has left there,
and `world` plays it.
"""
