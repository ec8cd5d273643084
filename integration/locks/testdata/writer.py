"""Adds lines to an object under a lock in PostgreSQL: python3 writer.py DSN LOCK PROXY BUCKET KEY <lines"""

import sys
import threading
import time

import boto3
import psycopg2

TTL = 10  # seconds; the server ends a session that is not heard of for so long, and its lock goes with it


def acquire(dsn, lock):
    """Waits for the lock. Returns the session that has it, and a token above that of every holder before."""
    session = psycopg2.connect(dsn, options=f"-c idle_session_timeout={TTL}s -c synchronous_commit=on")
    session.autocommit = True  # so the token is committed before it is used: one that was not could be given twice
    with session.cursor() as c:
        c.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [lock])
        c.execute(
            "INSERT INTO epochs AS e (lock, epoch) VALUES (%s, 1) ON CONFLICT (lock) DO UPDATE SET epoch = e.epoch + 1 RETURNING epoch",
            [lock],
        )
        return session, c.fetchone()[0]


def keep(session):
    """Keeps the session alive, until it is closed or lost. Who has lost it need not know: the fence does."""
    while True:
        time.sleep(TTL / 3)
        try:
            session.cursor().execute("SELECT 1")
        except psycopg2.Error:
            return


dsn, lock, proxy, bucket, key = sys.argv[1:]
session, token = acquire(dsn, lock)
threading.Thread(target=keep, args=[session], daemon=True).start()
print("token", token, flush=True)

s3 = boto3.client("s3", endpoint_url=f"{proxy}/~fence/{token}")
state = s3.get_object(Bucket=bucket, Key=key)["Body"].read()  # raises the fence: no older holder changes it from here on
state += sys.stdin.buffer.read()  # the work
s3.put_object(Bucket=bucket, Key=key, Body=state)
session.close()  # the lock is free
