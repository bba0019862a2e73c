"""The Celery application: its broker is a directory, its results are in Messina."""

import os
import pathlib

from celery import Celery

queue = pathlib.Path(os.environ["WORK_DIR"]) / "queue"
queue.mkdir(exist_ok=True)

app = Celery("tasks", broker="filesystem://", backend="cassandra://")
app.conf.update(
    broker_transport_options={"data_folder_in": str(queue), "data_folder_out": str(queue),
        "control_folder": str(queue / "control")},
    cassandra_servers=os.environ["HOSTS"].split(","),
    cassandra_keyspace="celery",
    cassandra_table="tasks",
    cassandra_write_consistency="QUORUM",
    cassandra_read_consistency="QUORUM",
    cassandra_entry_ttl=86400,
    result_extended=False,
    result_backend_always_retry=True,
    task_track_started=True,
)


@app.task
def square(n):
    return {"n": n, "square": n * n, "text": "ü" * (n % 50)}


@app.task
def total(squares):
    return sum(one["square"] for one in squares)


@app.task
def fail(n):
    raise ValueError(f"no {n}")


@app.task(bind=True)
def later(self, n):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1, max_retries=3)
    return n
