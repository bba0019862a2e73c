"""Celery with a worker of its own: tasks, a chord, failures and retries, their results read back
while a node is killed."""

import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from middle import HOSTS, Kill, check, end, keyspace, same  # noqa: E402

keyspace("celery")
from cassandra.cluster import Cluster  # noqa: E402
from celery import chord, group  # noqa: E402
from celery.exceptions import TimeoutError as NoResult  # noqa: E402
from tasks import app, fail, later, square, total  # noqa: E402

TASKS = 60


def answer(n):
    return {"n": n, "square": n * n, "text": "ü" * (n % 50)}


def main():
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2",
        "--loglevel", "WARNING", "--without-gossip",
               "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        with check("results"):
            # The worker makes the table with its first result; until then nothing can be read.
            square.delay(0)
            session = Cluster(HOSTS).connect()
            until = time.monotonic() + 60
            while not session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'celery'"
            ).one():
                assert (
                    time.monotonic() < until and worker.poll() is None
                ), "the worker made no table"
                time.sleep(0.1)
            sent = [square.delay(n) for n in range(TASKS)]
            same(
                [one.get(timeout=60) for one in sent], [answer(n) for n in range(TASKS)], "results"
            )
            same({app.AsyncResult(one.id).state for one in sent}, {"SUCCESS"}, "states")
        with check("chord"):
            same(
                chord(group(square.s(n) for n in range(20)))(total.s()).get(timeout=60),
                sum(n * n for n in range(20)),
                "total of the chord",
            )
        with check("failures"):
            bad = fail.delay(7)
            try:
                bad.get(timeout=60)
            except ValueError as error:
                same(str(error), "no 7", "error")
            else:
                raise AssertionError("the failed task has a result")
            same(app.AsyncResult(bad.id).state, "FAILURE", "state")
            same(later.delay(11).get(timeout=60), 11, "retried")
        with check("kill_middle"):
            sent, kill = [], None
            until = time.monotonic() + 120
            while kill is None or not kill.back or len(sent) < 2 * TASKS:
                assert time.monotonic() < until, "the node did not come back"
                sent.append(square.delay(len(sent)))
                if len(sent) == TASKS // 2:
                    kill = Kill()
                if len(sent) % 10 == 0:
                    same(sent[-1].get(timeout=60), answer(len(sent) - 1), "a result in between")
            lost = []
            for n, one in enumerate(sent):
                try:
                    same(one.get(timeout=60), answer(n), "result")
                except NoResult:
                    lost.append(n)
            assert not lost, f"{len(lost)} of {len(sent)} tasks have no result: {lost[:10]}"
        with check("results_table"):
            done = session.execute("SELECT task_id, status FROM celery.tasks").all()
            stored = {row.task_id for row in done if row.status == "SUCCESS"}
            missing = [one.id for one in sent if one.id not in stored]
            same(missing, [], "results that the table does not have")
        with check("expiry"):
            ttl = session.execute(
                "SELECT ttl(status) FROM celery.tasks WHERE task_id = %s", [sent[0].id]
            ).one()[0]
            assert 80000 < ttl <= 86400, f"cassandra_entry_ttl is not kept: {ttl}"
    finally:
        worker.terminate()
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
    end()


main()
