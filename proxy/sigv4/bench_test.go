package sigv4

import "testing"

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
