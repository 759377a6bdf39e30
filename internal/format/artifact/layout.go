package artifact

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/treetar"
)

// Bounds of an OCI layout.
const (
	maxLayoutIndex   = 1 << 20                  // bytes of index.json
	maxLayoutEntries = 2*snapshot.MaxChain + 16 // more than the number of an artifact's blobs
	blobDir          = oci.ImageBlobsDir + "/sha256"
)

// hotAnnotation is the annotation, in index.json, with the digest of a list of hot frames. The list
// is a blob that no manifest names, so that programs for OCI artifacts still find only one
// artifact. Such programs do not transfer the list.
const hotAnnotation = "dev.forkd.snapshot.hot"

// WriteLayout writes the tar archive of an OCI image layout (OCI image spec, image-layout.md) with
// one artifact, which gets the name in tag. The parameter hot is an encoded list of hot frames, or
// nil. WriteLayout calls open(n) to open the blob with the number n. The same arguments give the same
// bytes.
func WriteLayout(w io.Writer, a *Artifact, tag string, hot []byte, open func(blob int) (io.ReadCloser, error)) error {
	t := &layoutWriter{tar.NewWriter(w), a.Snapshot.Created.Truncate(time.Second)}
	annotations := map[string]string{oci.AnnotationRefName: tag}
	if hot != nil {
		annotations[hotAnnotation] = digest.FromBytes(hot).String()
	}
	index, err := json.Marshal(
		oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex,
			Manifests: []oci.Descriptor{{MediaType: oci.MediaTypeImageManifest, ArtifactType: Type, Digest: a.Digest(),
				Size: int64(len(a.Manifest)), Annotations: annotations}}},
	)
	if err != nil {
		return err
	}
	layout, err := json.Marshal(oci.ImageLayout{Version: oci.ImageLayoutVersion})
	if err != nil {
		return err
	}
	config := digest.FromBytes(a.Config)
	err = errors.Join(
		t.bytes(oci.ImageLayoutFile, layout),
		t.bytes(oci.ImageIndexFile, index),
		t.dir(oci.ImageBlobsDir),
		t.dir(blobDir),
		t.bytes(blobName(a.Digest()), a.Manifest),
		t.bytes(blobName(config), a.Config),
	)
	if err != nil {
		return err
	}
	if hot != nil {
		if err := t.bytes(blobName(digest.FromBytes(hot)), hot); err != nil {
			return err
		}
	}
	seen := make(map[digest.Digest]bool)
	for i, b := range a.Blobs {
		if seen[b.Digest] {
			continue
		}
		seen[b.Digest] = true
		r, err := open(i)
		if err != nil {
			return err
		}
		if err := errors.Join(t.file(blobName(b.Digest), b.Size, r), r.Close()); err != nil {
			return err
		}
	}
	return t.Close()
}

func blobName(d digest.Digest) string { return blobDir + "/" + d.Encoded() }

type layoutWriter struct {
	*tar.Writer
	time time.Time
}

func (t *layoutWriter) dir(name string) error {
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: t.time})
}

func (t *layoutWriter) bytes(name string, p []byte) error {
	return t.file(name, int64(len(p)), strings.NewReader(string(p)))
}

func (t *layoutWriter) file(name string, size int64, r io.Reader) error {
	err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: t.time})
	if err != nil {
		return err
	}
	_, err = io.Copy(t.Writer, r)
	return err
}

// zstdMagic begins a file that is compressed with zstd, RFC 8878 section 3.1.1.
const zstdMagic = "\x28\xb5\x2f\xfd"

// ReadLayout reads the tar archive of an OCI image layout with one artifact. It returns the digest
// of the artifact's manifest, and the digest of the list of hot frames. If there is no list, the
// second digest is empty. Even if this digest is not empty, the list may be missing or damaged. For
// every blob, ReadLayout calls put, which must read the whole blob and compare it with its digest.
// Entries may have any order. If the archive is invalid, the error is an *Error.
func ReadLayout(
	r io.Reader,
	put func(d digest.Digest, size int64, r io.Reader) error,
) (manifest, hot digest.Digest, err error) {
	compressed := bufio.NewReader(r)
	if p, _ := compressed.Peek(len(zstdMagic)); string(p) == zstdMagic {
		return "", "", invalid("the archive is compressed with zstd: decompress it; archives of forkd 0.5 must be made again " +
			"from their recipe")
	}
	in := treetar.NewReader(compressed)
	var index []byte
	seen := make(map[string]bool)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", "", invalid("read the tar archive: %w", err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir && (name == "." || name == oci.ImageBlobsDir || name == blobDir) {
			continue
		}
		hex, isBlob := strings.CutPrefix(name, blobDir+"/")
		d := digest.NewDigestFromEncoded(digest.SHA256, hex)
		switch {
		case h.Typeflag != tar.TypeReg || h.Size < 0:
			return "", "", invalid("%.100q in the archive is not a regular file", h.Name)
		case seen[name] || len(seen) >= maxLayoutEntries:
			return "", "", invalid(
				"%.100q appears twice in the archive, or there are more than %d files",
				h.Name,
				maxLayoutEntries,
			)
		case isBlob && checkDigest(d) == nil:
			err = put(d, h.Size, in)
		case name == oci.ImageIndexFile && h.Size <= maxLayoutIndex:
			index, err = io.ReadAll(in)
		case name == oci.ImageLayoutFile && h.Size <= maxLayoutIndex:
		default:
			return "", "", invalid("the archive has %.100q of %d bytes, which an OCI image layout has not", h.Name, h.Size)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return "", "", invalid("the archive is truncated")
		}
		if err != nil {
			return "", "", err
		}
		seen[name] = true
	}
	return manifestOf(index)
}

// manifestOf returns the digest of the only manifest in an index.json, and the digest of the list
// of hot frames.
func manifestOf(index []byte) (manifest, hot digest.Digest, err error) {
	if index == nil {
		return "", "", invalid(
			"the archive has no %s: it is truncated, or no OCI image layout; archives of forkd 0.5 must be made again from their recipe",
			oci.ImageIndexFile,
		)
	}
	var x oci.Index
	if err := json.Unmarshal(index, &x); err != nil {
		return "", "", invalid("%s: %w", oci.ImageIndexFile, err)
	}
	if len(x.Manifests) != 1 {
		return "", "", invalid("%s has %d manifests: want 1", oci.ImageIndexFile, len(x.Manifests))
	}
	if hot = digest.Digest(x.Manifests[0].Annotations[hotAnnotation]); checkDigest(hot) != nil {
		hot = "" // ignored, because the list is only a hint
	}
	d := x.Manifests[0].Digest
	return d, hot, checkDigest(d)
}
