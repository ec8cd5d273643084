"""What a job does with a bucket, by boto3 in its default settings: all of it with token 34, none of it with token 33.

Arguments: the endpoint, the channel (path or session), the bucket.
"""

import os
import sys
import time

import boto3
import botocore.exceptions

endpoint, channel, bucket = sys.argv[1:]


def client(token):
    if channel == "path":
        return boto3.client("s3", endpoint_url=f"{endpoint}/~fence/{token}")
    return boto3.client("s3", endpoint_url=endpoint, aws_session_token=f"fence={token}",
                        aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
                        aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"])


holder, stale = client(34), client(33)


def refused(what, call):
    begun = time.monotonic()
    try:
        call()
    except (botocore.exceptions.ClientError, boto3.exceptions.S3UploadFailedError) as e:
        assert "token 33 is below 34" in str(e), f"{what}: {e}"
        assert time.monotonic() - begun < 20, f"{what}: refused after {time.monotonic() - begun} s"
        return
    sys.exit(f"{what}: not refused")


def holds(key, content):
    got = holder.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert got == content, f"{key} holds {len(got)} bytes"


holder.create_bucket(Bucket=bucket)
holder.put_object(Bucket=bucket, Key="jobs/7/a b+c", Body=b"of 34")
refused("put", lambda: stale.put_object(Bucket=bucket, Key="jobs/7/a b+c", Body=b"of 33"))
holds("jobs/7/a b+c", b"of 34")

big = os.urandom(64 << 20)
with open("big", "wb") as f:
    f.write(big)
holder.upload_file("big", bucket, "jobs/7/big")
refused("multipart", lambda: stale.upload_file("big", bucket, "jobs/7/big2"))
holds("jobs/7/big", big)

source = {"Bucket": bucket, "Key": "jobs/7/a b+c"}
holder.copy_object(Bucket=bucket, Key="jobs/7/copy", CopySource=source)
refused("copy", lambda: stale.copy_object(Bucket=bucket, Key="jobs/7/copy", CopySource=source))

keys = [o["Key"] for o in stale.list_objects_v2(Bucket=bucket, Prefix="jobs/7/")["Contents"]]
assert keys == ["jobs/7/a b+c", "jobs/7/big", "jobs/7/copy"], keys

stale.put_object(Bucket=bucket, Key="jobs/8/x", Body=b"of 33")
answer = stale.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "jobs/7/copy"}, {"Key": "jobs/8/x"}]})
assert [e["Key"] for e in answer["Errors"]] == ["jobs/7/copy"], answer
assert "token 33 is below 34" in answer["Errors"][0]["Message"], answer
assert [d["Key"] for d in answer["Deleted"]] == ["jobs/8/x"], answer
holds("jobs/7/copy", b"of 34")

refused("delete", lambda: stale.delete_object(Bucket=bucket, Key="jobs/7/copy"))
holder.delete_object(Bucket=bucket, Key="jobs/7/copy")
print("boto3", boto3.__version__, "was refused where it had to be")
