package v1_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/vmmclient"
)

// A client without a token learns whether the daemon is ready, and the state of the daemon's pool.
func TestReady(t *testing.T) {
	r := start(t, apirig.Options{})
	for path, want := range map[string]int{"/readyz": 200, "/readyz?warm=true": 200, "/readyz?warm=perhaps": 400} {
		resp, err := http.Get(r.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		var got apiv1.Ready
		err = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		if resp.StatusCode != want || err != nil || want == 200 && (!got.Ready || !got.PoolWarm || got.PoolWanted != 0) {
			t.Errorf("%s: %d, %+v, %v", path, resp.StatusCode, got, err)
		}
	}
}

// If the host cannot run VMs, the daemon reports this in its readiness, and in the errors of
// requests that need a VM.
func TestReadyWithoutKVM(t *testing.T) {
	r := start(t, apirig.Options{NoKVM: errors.New("no such device")})
	resp, err := http.Get(r.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got apiv1.Ready
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || resp.StatusCode != 503 || got.Ready ||
		got.Reason != "no such device" {
		t.Errorf("/readyz: %s, %+v, %v", resp.Status, got, err)
	}
	if v, err := r.Version(t.Context()); err != nil || v.NoKVM != "no such device" {
		t.Errorf("/version: %+v, %v", v, err)
	}
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	r.VMs.SpawnErr = &vmmclient.NoKVMError{Err: errors.New("no such device")}
	bake := r.Parent
	bake.Tag = "another"
	_, baked := r.Bake(t.Context(), bake)
	_, forked := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	for what, err := range map[string]error{"bake": baked, "fork": forked} {
		var answer *client.Error
		if !errors.As(err, &answer) || answer.Status != 503 || answer.Code != "no_kvm" ||
			!strings.Contains(answer.Message, "no such device") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
