package sigv4

import (
	"bytes"
	"io"
	"slices"
	"testing"
)

// benchmarkPut is a PUT of 4 KiB as the Go SDK sends it.
func benchmarkPut(b *testing.B, v *Verifier, change string) {
	r := parse(b, "PUT /~fence/34/bucket/jobs/7/part-00042.parquet?x-id=PutObject HTTP/1.1\nHost: proxy:9000\nContent-Length: 4096\n"+
		"Content-Type: application/octet-stream\nAccept-Encoding: identity\nAmz-Sdk-Invocation-Id: 7e0ab8f5-3e4c-4b65-9c1f-1a1c0a3bb1a5\n"+
		"Amz-Sdk-Request: attempt=1; max=3\nX-Amz-Checksum-Crc32: 9L0xkQ==\nX-Amz-Sdk-Checksum-Algorithm: CRC32\n\n")
	signSDK(b, r, "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7", "fence=34")
	if _, err := v.Verify(r); err != nil {
		b.Fatal(err)
	}
	if change != "" {
		r.Host = change
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(r); (err != nil) != (change != "") {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) { benchmarkPut(b, newTest(Options{Region: testRegion}), "") }

func BenchmarkVerifyRefused(b *testing.B) {
	benchmarkPut(b, newTest(Options{Region: testRegion}), "another")
}

func BenchmarkVerifyPresigned(b *testing.B) {
	v, r := newTest(Options{Region: testRegion}), getExample(b, presignedExample)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChunks reads 1 MiB in chunks of 64 KiB, as minio-go sends it.
func BenchmarkChunks(b *testing.B) {
	for _, p := range []Payload{SignedChunks, SignedChunksTrailer, UnsignedChunksTrailer} {
		body := chunkBody{payload: p, content: make([]byte, 1<<20), sizes: slices.Repeat([]int{64 << 10}, 15)}
		if p != SignedChunks {
			body.value = "sOO8/Q=="
		}
		id, seed := body.identity(b)
		wire := body.wire(b, seed)
		b.Run(p.String(), func(b *testing.B) {
			buffer := make([]byte, 32<<10)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				chunks := id.Chunks(bytes.NewReader(wire), body.options())
				if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, chunks, buffer); n != 1<<20 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// TestAllocations: each request pays for its check, so the memory that it takes must not grow unseen.
func TestAllocations(t *testing.T) {
	v := newTest(Options{Region: testRegion})
	r := signed(t, putRequest("/b/k"), "/b/k", base)
	if n := testing.AllocsPerRun(200, func() { _, _ = v.Verify(r) }); n > 20 {
		t.Errorf("a header's check makes %v allocations", n)
	}
}
