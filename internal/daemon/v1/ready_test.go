package v1_test

import (
	"encoding/json"
	"net/http"
	"testing"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/apirig"
)

// A daemon says without a token that it is ready, and what its pool has.
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
