// What a job does with a bucket, by the AWS SDK for JavaScript in its default settings: all of it with token 34, none of it with
// token 33. Arguments: the bucket. The modules holder and stale each export a client s3. At the end it says how often it must have
// been refused.
import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import {
  CopyObjectCommand, CreateBucketCommand, DeleteObjectCommand, DeleteObjectsCommand, GetObjectCommand, ListObjectsV2Command, PutObjectCommand,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { s3 as holder } from "./holder.mjs";
import { s3 as stale } from "./stale.mjs";

const Bucket = process.argv[2];
const payloads = new Set();
holder.middlewareStack.add((next) => (args) => {
  payloads.add(args.request.headers["x-amz-content-sha256"].replace(/^[0-9a-f]{64}$/, "hex"));
  return next(args);
}, { step: "finalizeRequest", priority: "low" });

let refusals = 0;
async function refused(what, promise) {
  refusals++;
  await assert.rejects(promise, (e) => {
    assert.match(e.message, /token 33 is below 34/, what);
    assert.equal(e.name, "PreconditionFailed", what);
    assert.equal(e.$metadata.attempts ?? 1, 1, what); // it does not count those of a stream, which it cannot send again
    return true;
  });
}
const put = (client, Key, Body) => client.send(new PutObjectCommand({ Bucket, Key, Body }));
const upload = (client, Key) => new Upload({ client, params: { Bucket, Key, Body: big } }).done();
const copy = (client, Key) => client.send(new CopyObjectCommand({ Bucket, Key, CopySource: `${Bucket}/jobs/7/a%20b%2Bc` }));
const remove = (client, Key) => client.send(new DeleteObjectCommand({ Bucket, Key }));
async function holds(Key, content) {
  const got = await holder.send(new GetObjectCommand({ Bucket, Key }));
  assert.ok(Buffer.from(await got.Body.transformToByteArray()).equals(Buffer.from(content)), Key);
}

const big = readFileSync("big");
await holder.send(new CreateBucketCommand({ Bucket }));
await put(holder, "jobs/7/a b+c", "of 34");
await refused("put", put(stale, "jobs/7/a b+c", "of 33"));
await holds("jobs/7/a b+c", "of 34");

await upload(holder, "jobs/7/big");
await refused("upload in parts", upload(stale, "jobs/7/big2"));
await refused("large put", put(stale, "jobs/7/big", big));
await put(holder, "jobs/7/big", createReadStream("big"));
await refused("stream", put(stale, "jobs/7/big", createReadStream("big")));
await holds("jobs/7/big", big);

await copy(holder, "jobs/7/copy");
await refused("copy", copy(stale, "jobs/7/copy"));

const list = await stale.send(new ListObjectsV2Command({ Bucket, Prefix: "jobs/7/" }));
assert.deepEqual(list.Contents.map((o) => o.Key), ["jobs/7/a b+c", "jobs/7/big", "jobs/7/copy"]);

await put(stale, "jobs/8/x", "of 33");
const answer = await stale.send(new DeleteObjectsCommand({ Bucket, Delete: { Objects: [{ Key: "jobs/7/copy" }, { Key: "jobs/8/x" }] } }));
refusals++;
assert.deepEqual(answer.Errors.map((e) => e.Key), ["jobs/7/copy"]);
assert.match(answer.Errors[0].Message, /token 33 is below 34/);
assert.deepEqual(answer.Deleted.map((d) => d.Key), ["jobs/8/x"]);
await holds("jobs/7/copy", "of 34");

await refused("delete", remove(stale, "jobs/7/copy"));
await remove(holder, "jobs/7/copy");

console.log("version: Node", process.version, "sends", ...payloads);
console.log("refused", refusals);
