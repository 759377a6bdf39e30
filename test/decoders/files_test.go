package decoders

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/net/inspect"
	"github.com/forkd/forkd/internal/net/peek"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/treetar"
)

func allRows() []row {
	return slices.Concat(callRows(), streamRows(), otherRows(), archiveRows(), messageRows(), formatRows(),
		peekRows(), dnsRows(), mcpRows(), signatureRows())
}

// archive returns a tar archive of n entries. It calls name to get the name of entry i.
func archive(n int, name func(i int) string, typ byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; b.Len() < n; i++ {
		if err := w.WriteHeader(&tar.Header{Typeflag: typ, Name: name(i), Linkname: "x", Mode: 0o755,
			Format: tar.FormatPAX}); err != nil {
			panic(err) // the error would be a mistake in this test
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func archiveRows() []row {
	unpack := func(t *testing.T, p []byte) {
		dir, err := os.MkdirTemp("", "decoders")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_ = treetar.Unpack(bytes.NewReader(p), treetar.Target{Root: root})
	}
	numbers := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	return []row{
		// This name has as many directories as its length permits.
		{name: "treetar/one deep name", most: 4 << 10, decode: unpack, fixed: 8 << 20, input: func(n int) []byte {
			return archive(1, func(int) string { return strings.Repeat("a/", n/4) + "f" }, tar.TypeReg)
		}},
		{name: "treetar/deep names", most: 16 << 10, decode: unpack, factor: 500, input: func(n int) []byte {
			return archive(n, func(i int) string {
				return strings.Repeat(numbers[i%10]+"/", 200) + "f" +
					strings.Repeat("x", i)
			}, tar.TypeSymlink)
		}},
		{name: "treetar/a long name", most: 128 << 10, decode: unpack, input: func(n int) []byte {
			return archive(1, func(int) string { return strings.Repeat("./", n/2) + "f" }, tar.TypeReg)
		}},
		{name: "treetar/a directory again and again", decode: unpack, input: func(n int) []byte {
			return archive(n, func(int) string { return "a/b/" }, tar.TypeDir)
		}},
	}
}

// parser is a message of one of the control protocols.
type parser interface{ Parse(*codec.Reader) error }

func messageRows() (rows []row) {
	const most = 256 << 10 // inputs are up to four times as long, and a message has at most 1 MiB
	for name, make := range map[string]func() parser{
		"vmmproto/Created": func() parser { return &vmmproto.Created{} }, "vmmproto/RestoreResult": func() parser {
			return &vmmproto.RestoreResult{}
		},
		"vmmproto/SaveResult": func() parser { return &vmmproto.SaveResult{} }, "vmmproto/Stats": func() parser {
			return &vmmproto.Stats{}
		},
		"vmmproto/Exit": func() parser { return &vmmproto.Exit{} }, "vmmproto/Error": func() parser {
			return &vmmproto.Error{}
		},
		"vmmproto/BranchResult": func() parser { return &vmmproto.BranchResult{} }, "vmmproto/RebaseResult": func() parser {
			return &vmmproto.RebaseResult{}
		},
		"vmmproto/Written": func() parser { return &vmmproto.Written{} }, "vmmproto/Branched": func() parser {
			return &vmmproto.Branched{}
		},
		"netproto/Welcome": func() parser { return &netproto.Welcome{} }, "netproto/List": func() parser {
			return &netproto.List{}
		},
		"netproto/Stats": func() parser { return &netproto.Stats{} }, "netproto/Error": func() parser {
			return &netproto.Error{}
		},
		"netproto/Attach": func() parser { return &netproto.Attach{} }, "netproto/Trust": func() parser {
			return &netproto.Trust{}
		},
	} {
		for what, fill := range map[string]func(n int) []byte{
			"zeros":            func(n int) []byte { return bytes.Repeat([]byte{0}, n) },
			"ones":             func(n int) []byte { return bytes.Repeat([]byte{1, 0, 0, 0}, n/4) },
			"greatest numbers": func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) },
			"a number of elements": func(n int) []byte { // the number grows up to the maximum that the reader accepts
				return append(binary.LittleEndian.AppendUint32(nil, uint32(n/32)), bytes.Repeat([]byte{0}, n)...)
			},
			"the greatest text": func(n int) []byte {
				return append(binary.LittleEndian.AppendUint32(nil, uint32(n)), bytes.Repeat([]byte("a"), n)...)
			},
		} {
			rows = append(rows, row{name: name + "/" + what, input: fill, most: most,
				decode: func(_ *testing.T, p []byte) { _ = make().Parse(codec.NewReader(p)) }})
		}
	}
	return append(rows, row{name: "agentproto/Parse", most: most, input: func(n int) []byte {
		return bytes.Repeat([]byte{1, 0, 0, 0}, n/4)
	},
		decode: func(_ *testing.T, p []byte) { _, _ = agentproto.Parse(p) }})
}

func formatRows() []row {
	manifest := func(_ *testing.T, p []byte) { _, _ = snapshot.ParseManifest(p) }
	memory := func(_ *testing.T, p []byte) { _, _ = snapshot.ParseMemoryMap(p, []uint64{1 << 40, 1 << 40}, 1<<40) }
	disk := func(t *testing.T, p []byte) {
		name := filepath.Join(t.TempDir(), "layer")
		if err := os.WriteFile(name, p, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if l, err := disklayer.Open(f); err == nil {
			_ = l.Close()
		}
	}
	return []row{
		{name: "manifest/layers", input: repeated(`{"layers":[`, `{}`, `]}`), decode: manifest, most: 1000 << 10,
			fixed: 64 << 20},
		{name: "manifest/variables", input: numbered(`{"env":{`, `"%d":""`, `}}`), decode: manifest, most: 1000 << 10,
			fixed: 64 << 20},
		{name: "manifest/nested", input: deep(`{"x":[`, `1`, `]}`), decode: manifest, most: 1000 << 10},
		{name: "memory map/zeros", input: func(n int) []byte { return make([]byte, n) }, decode: memory, most: 512 << 10},
		{name: "memory map/greatest numbers", input: func(n int) []byte {
			return bytes.Repeat([]byte{0xff}, n)
		}, decode: memory, most: 512 << 10},
		{name: "disk layer/zeros", input: func(n int) []byte { return make([]byte, n) }, decode: disk, most: 1 << 20},
		{name: "disk layer/greatest numbers", input: func(n int) []byte {
			return bytes.Repeat([]byte{0xff}, n)
		}, decode: disk, most: 1 << 20},
	}
}

func peekRows() []row {
	seen := func(_ *testing.T, p []byte) { _, _ = peek.Server(bytes.NewReader(p)) }
	return []row{
		{name: "peek/headers", input: func(n int) []byte {
			return []byte("GET / HTTP/1.1\r\n" +
				strings.Repeat("a:\r\n", n/4))
		}, decode: seen, factor: 32},
		{name: "peek/a request without an end", input: func(n int) []byte {
			return []byte("GET /" + strings.Repeat("a", n))
		}, decode: seen},
		{name: "peek/records of one byte", input: func(n int) []byte { return bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, n/6) },
			decode: seen, factor: 32},
		{name: "peek/a ClientHello of zeros", decode: seen, input: func(n int) []byte {
			return append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc}, make([]byte, n)...)
		}},
		{name: "frame", input: func(n int) []byte { return bytes.Repeat([]byte{0x45}, n) },
			decode: func(_ *testing.T, p []byte) { inspect.Message(p) }},
	}
}
