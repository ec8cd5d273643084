"""What a job does with a bucket, by boto3 in its default settings: all of it with token 34, none of it with token 33.

Arguments: the bucket, http or https. The modules holder and stale each have a client s3. At the end it says how often it must
have been refused.
"""

import os
import sys

import boto3
import botocore.exceptions

from holder import s3 as holder
from stale import s3 as stale

bucket, scheme = sys.argv[1:]
refusals = 0
payloads = set()


def note(request, **_):
    payload = request.headers["X-Amz-Content-SHA256"]
    payload = payload.decode() if isinstance(payload, bytes) else payload
    payloads.add("hex" if len(payload) == 64 else payload)


holder.meta.events.register("before-send.s3.PutObject", note)


def refused(what, call):
    global refusals
    refusals += 1
    try:
        call()
    except (botocore.exceptions.ClientError, boto3.exceptions.S3UploadFailedError) as e:
        assert "token 33 is below 34" in str(e), f"{what}: {e}"
        return
    sys.exit(f"{what}: not refused")


def holds(key, content):
    got = holder.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert got == content, f"{key} holds {len(got)} bytes"


holder.create_bucket(Bucket=bucket)
holder.put_object(Bucket=bucket, Key="jobs/7/a b+c", Body=b"of 34")
refused("put", lambda: stale.put_object(Bucket=bucket, Key="jobs/7/a b+c", Body=b"of 33"))
holds("jobs/7/a b+c", b"of 34")

holder.upload_file("big", bucket, "jobs/7/big")
refused("multipart", lambda: stale.upload_file("big", bucket, "jobs/7/big2"))
with open("big", "rb") as f:
    holds("jobs/7/big", f.read())

source = {"Bucket": bucket, "Key": "jobs/7/a b+c"}
holder.copy_object(Bucket=bucket, Key="jobs/7/copy", CopySource=source)
refused("copy", lambda: stale.copy_object(Bucket=bucket, Key="jobs/7/copy", CopySource=source))

keys = [o["Key"] for o in stale.list_objects_v2(Bucket=bucket, Prefix="jobs/7/")["Contents"]]
assert keys == ["jobs/7/a b+c", "jobs/7/big", "jobs/7/copy"], keys

stale.put_object(Bucket=bucket, Key="jobs/8/x", Body=b"of 33")
answer = stale.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "jobs/7/copy"}, {"Key": "jobs/8/x"}]})
refusals += 1
assert [e["Key"] for e in answer["Errors"]] == ["jobs/7/copy"], answer
assert "token 33 is below 34" in answer["Errors"][0]["Message"], answer
assert [d["Key"] for d in answer["Deleted"]] == ["jobs/8/x"], answer
holds("jobs/7/copy", b"of 34")

refused("delete", lambda: stale.delete_object(Bucket=bucket, Key="jobs/7/copy"))
holder.delete_object(Bucket=bucket, Key="jobs/7/copy")

print("version: boto3", boto3.__version__, "python", sys.version.split()[0], "sends", *payloads)
print("refused", refusals)
