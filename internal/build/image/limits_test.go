package image

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

func TestRecipeLimits(t *testing.T) {
	const head = "name: x\nbase: debian:bookworm\n"
	r, err := ParseRecipe([]byte(head + "limits: {memory_mib: 256, cpus: 1.5}\n"))
	if want := (vm.Limits{MemoryMiB: 256, CPUs: 1.5}); err != nil || r.Limits.Limits != want {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"limits: {memory_mib: 5}": "limits: memory_mib: 5", "limits: {swap_mib: 5}": "limits: swap_mib",
		"limits: {ram: 5}": `unknown field "ram"`, "limits: 5": "limits",
	} {
		if _, err := ParseRecipe([]byte(head + text + "\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
