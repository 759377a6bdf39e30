package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// moveEvents are the events of a pull.
var moveEvents = []client.HubFile{
	{Name: "base", State: "shared", Bytes: 5 << 20},
	{Name: "memory.layer.0", State: "pulling", Bytes: 4 << 20, Done: 1 << 20},
	{Name: "memory.layer.0", State: "pulling", Bytes: 4 << 20, Done: 3 << 20},
	{Name: "vmstate", State: "pulled", Bytes: 5000},
	{Name: "memory.layer.0", State: "pulled", Bytes: 4 << 20},
	{Name: "vmstate", State: "unpacked", Bytes: 5000},
	{Name: "memory.layer.0", State: "unpacked", Bytes: 4 << 20},
}

func TestHubProgress(t *testing.T) {
	for progress, want := range map[string][]string{
		"plain": {"#1 base\n#1 CACHED\n", "#2 memory.layer.0\n", "#3 DONE ", "#2 DONE ", "#4 unpack\n", "#4 DONE "},
		"tty": {" => CACHED base\n", " => vmstate 0.0s\n", " => memory.layer.0 ", " => => 3.0 MiB of 4.0 MiB\n",
			" => unpack "},
	} {
		var out bytes.Buffer
		o := registryOptions{progress: progress}
		on, end := o.follow(&out)
		for _, f := range moveEvents {
			if err := on(client.HubEvent{File: &f}); err != nil {
				t.Fatal(err)
			}
		}
		end()
		rest := out.String()
		for _, w := range want {
			_, after, ok := strings.Cut(rest, w)
			if !ok {
				t.Errorf("%s: %q lacks %q, or has it too early", progress, out.String(), w)
			}
			rest = after
		}
	}
}
