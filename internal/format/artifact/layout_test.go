package artifact

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// collect is a put function of ReadLayout that keeps the blobs.
func collect(into map[digest.Digest][]byte) func(digest.Digest, int64, io.Reader) error {
	return func(d digest.Digest, _ int64, r io.Reader) error {
		p, err := io.ReadAll(r)
		into[d] = p
		return err
	}
}

func TestLayoutRoundTrip(t *testing.T) {
	a, blobs := sample(t)
	var out bytes.Buffer
	err := WriteLayout(&out, a, "b1", nil, func(i int) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blobs[a.Blobs[i].Digest])), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[digest.Digest][]byte)
	d, hot, err := ReadLayout(bytes.NewReader(out.Bytes()), collect(got))
	if err != nil || d != a.Digest() || hot != "" {
		t.Fatalf("manifest %v, %v", d, err)
	}
	again, err := Parse(got[d], got[digest.FromBytes(a.Config)])
	if err != nil || again.Digest() != a.Digest() {
		t.Fatal(err)
	}
	for d, p := range blobs {
		if !bytes.Equal(got[d], p) {
			t.Errorf("blob %v differs", d)
		}
	}
}

// A list of hot frames is a blob of the layout, and the index still has one manifest. If the digest
// of the list is not valid, the list is ignored.
func TestLayoutWithHotFrames(t *testing.T) {
	a, blobs := sample(t)
	list, err := HotOf(map[digest.Digest][]int{a.Blobs[0].Digest: {0}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = WriteLayout(&out, a, "b1", list, func(i int) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blobs[a.Blobs[i].Digest])), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[digest.Digest][]byte)
	d, hot, err := ReadLayout(bytes.NewReader(out.Bytes()), collect(got))
	if err != nil || d != a.Digest() || !bytes.Equal(got[hot], list) {
		t.Errorf("manifest %v, list %v of %q, %v", d, hot, got[hot], err)
	}
	text := digest.FromBytes(list).String()
	for _, wrong := range []string{strings.Repeat("x", len(text)), "sha256:" + strings.Repeat("/", 64)} {
		p := bytes.Replace(out.Bytes(), []byte(text), []byte(wrong), 1) // the length is the same, so the tar stays valid
		if d, hot, err := ReadLayout(bytes.NewReader(p), collect(got)); err != nil || d != a.Digest() || hot != "" {
			t.Errorf("%s: manifest %v, list %v, %v", wrong, d, hot, err)
		}
	}
}

// Archive entries that do not belong to an OCI layout are refused, whatever their names are.
func TestHostileLayouts(t *testing.T) {
	blob := blobDir + "/" + strings.Repeat("ab", 32)
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"` + oci.MediaTypeImageManifest + `","digest":"sha256:` +
		strings.Repeat("ab", 32) + `","size":1}]}`
	type entry struct {
		name, text string
		kind       byte
	}
	file := func(name, text string) entry { return entry{name, text, tar.TypeReg} }
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"a path upwards":      {[]entry{file("blobs/sha256/../../../x", "")}, "which an OCI image layout has not"},
		"an absolute path":    {[]entry{file("/etc/passwd", "")}, "which an OCI image layout has not"},
		"another file":        {[]entry{file("manifest.json", "")}, "which an OCI image layout has not"},
		"a short digest":      {[]entry{file(blobDir+"/ab", "")}, "which an OCI image layout has not"},
		"upper case":          {[]entry{file(strings.ToUpper(blob), "")}, "which an OCI image layout has not"},
		"a symbolic link":     {[]entry{{blob, "", tar.TypeSymlink}}, "not a regular file"},
		"a hard link":         {[]entry{{blob, "", tar.TypeLink}}, "not a regular file"},
		"a device":            {[]entry{{blob, "", tar.TypeBlock}}, "not a regular file"},
		"another directory":   {[]entry{{"x/", "", tar.TypeDir}}, "not a regular file"},
		"a blob twice":        {[]entry{file(blob, "x"), file("./"+blob, "y")}, "appears twice"},
		"nothing":             {nil, "no index.json"},
		"no index":            {[]entry{file(blob, "x")}, "no index.json"},
		"an index of no JSON": {[]entry{file("index.json", "{")}, "index.json"},
		"two manifests": {[]entry{file("index.json", strings.Replace(index, "[{", `[{"digest":"x"},{`, 1))},
			"2 manifests"},
		"a path in the index": {[]entry{file("index.json", strings.ReplaceAll(index, strings.Repeat("ab", 32),
			"../x"))}, "digest"},
		"a long index": {[]entry{file("index.json", strings.Repeat(" ", maxLayoutIndex+1))},
			"which an OCI image layout has not"},
		"a layout of any size": {[]entry{file("oci-layout", strings.Repeat(" ", maxLayoutIndex+1))},
			"which an OCI image layout has not"},
	} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, e := range c.entries {
			h := &tar.Header{Typeflag: e.kind, Name: e.name, Size: int64(len(e.text)), Linkname: "/etc/passwd"}
			if e.kind != tar.TypeReg {
				h.Size = 0
			} else {
				h.Linkname = ""
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := io.WriteString(w, e.text); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, _, err := ReadLayout(&out, collect(map[digest.Digest][]byte{}))
		var format *Error
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	many := map[digest.Digest][]byte{}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range maxLayoutEntries + 1 {
		d := digest.FromString(strings.Repeat("x", i))
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: blobName(d)}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if _, _, err := ReadLayout(&out, collect(many)); err == nil || len(many) > maxLayoutEntries {
		t.Errorf("%d entries: %v", len(many), err)
	}
}

// An archive that is cut at any place is refused, unless only the padding at its end is missing.
func TestTruncatedLayout(t *testing.T) {
	a, blobs := sample(t)
	var out bytes.Buffer
	err := WriteLayout(&out, a, "b1", nil, func(i int) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blobs[a.Blobs[i].Digest])), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < out.Len()-2048; cut += 7001 {
		got := map[digest.Digest][]byte{}
		d, _, err := ReadLayout(bytes.NewReader(out.Bytes()[:cut]), collect(got))
		if err == nil && slices.Collect(maps.Keys(got)) != nil && len(got) == len(blobs)+2 && d == a.Digest() {
			t.Errorf("cut to %d of %d bytes: complete", cut, out.Len())
		}
	}
}

// Whatever an archive contains, ReadLayout names only digests, reads no more than the archive has,
// and returns digests or an error.
func FuzzReadLayout(f *testing.F) {
	a, blobs := sample(f)
	for _, hot := range [][]byte{nil, []byte(`{"blobs":{}}`)} {
		var out bytes.Buffer
		err := WriteLayout(&out, a, "b1", hot, func(i int) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(blobs[a.Blobs[i].Digest][:min(512, a.Blobs[i].Size)])), nil
		})
		if err == nil {
			f.Fatal("blobs that are too short were written")
		}
		f.Add(out.Bytes())
		out.Reset()
		err = WriteLayout(&out, a, "b1", hot, func(i int) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(blobs[a.Blobs[i].Digest])), nil
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		read := 0
		d, hot, err := ReadLayout(bytes.NewReader(archive), func(d digest.Digest, size int64, r io.Reader) error {
			p, err := io.ReadAll(r)
			if read += len(p); checkDigest(d) != nil || size < 0 || err == nil && int64(len(p)) != size || read > len(archive) {
				t.Fatalf("blob %q of %d bytes: %d bytes, %v", d, size, len(p), err)
			}
			return err
		})
		if err == nil && (checkDigest(d) != nil || hot != "" && checkDigest(hot) != nil) {
			t.Fatalf("manifest %q, list %q", d, hot)
		}
	})
}
