package v1_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// Requests that accept an older measurement share it. Other requests get a new one. A measurement is
// not used after a change of the sandbox's state.
func TestStatsOfAnAge(t *testing.T) {
	ram, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil { // this process stands in for the VMM, so it maps the guest's RAM
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	r := start(t, apirig.Options{})
	r.Parent.Tag = "p"
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	get := func(path string) (status int, body []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v1/sandboxes/"+id+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	dirty := func(path string) (kib uint64) {
		t.Helper()
		var st client.Stats
		status, body := get(path)
		if err := json.Unmarshal(body, &st); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", path, status, body, err)
		}
		return st.GuestDirty
	}
	turn := uint64(0)
	write := func() uint64 { // the guest writes memory
		turn++
		r.VMs.Mu.Lock()
		defer r.VMs.Mu.Unlock()
		r.VMs.GuestDirty = turn << 20
		return turn << 10
	}
	for _, path := range []string{"/stats", "/written"} {
		for _, age := range []string{"nan", "-1", "11", "x"} {
			status, body := get(path + "?max_age_secs=" + age)
			if status != http.StatusBadRequest || !strings.Contains(string(body), "max_age_secs: ") {
				t.Errorf("%s, age %s: %d %s", path, age, status, body)
			}
		}
		// A measurement may become too old on a slow host, so the test tries again.
		for shared := false; !shared; {
			write()
			before := dirty(path + "?max_age_secs=10")
			now := write()
			shared = dirty(path+"?max_age_secs=10") == before
			if got := dirty(path); got != now {
				t.Errorf("%s: %d KiB measured now, want %d", path, got, now)
			}
		}
	}
	now := write()
	if w, err := r.Written(t.Context(), id, 0); err != nil || w.GuestDirty != now || w.MemorySince == 0 {
		t.Errorf("written %+v (%v), want %d KiB", w, err, now)
	}
	if _, err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/stats", "/written"} {
		if status, body := get(path + "?max_age_secs=10"); status != http.StatusConflict {
			t.Errorf("%s of a paused sandbox: %d %s", path, status, body)
		}
	}
}

// The memory of the VMM process is not measured for 'written', so the guest's RAM need not be found.
func TestWrittenReadsNoPageTables(t *testing.T) {
	r := start(t, apirig.Options{})
	r.Parent.Tag = "p"
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if _, err := r.Stats(t.Context(), id); err == nil { // this process has no guest RAM
		t.Fatal("stats found the RAM of a guest")
	}
	if _, err := r.Written(t.Context(), id, 3); err != nil {
		t.Error(err)
	}
}
