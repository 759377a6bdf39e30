package v1

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// A client receives the last message only after the handler has returned and its places are free
// again. This does not depend on the length of the message.
func TestTheLastLineComesLast(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("long ", 100_000)} {
		var returns atomic.Bool
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			defer returns.Store(true)
			out := newLines(w, time.Minute)
			if err := out.send(apiv1.BuildEvent{Keepalive: true}); err != nil {
				t.Error(err)
			}
			out.last(apiv1.BuildEvent{Error: text + "<"})
			time.Sleep(50 * time.Millisecond) // time in which the client would read the line
		}))
		resp, err := http.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(resp.Body)
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "keepalive") || returns.Load() {
			t.Errorf("first line: %q, %v", line, err)
		}
		if line, err := in.ReadString('}'); err != nil || line != `{"error":"`+text+`<"}` || !returns.Load() {
			t.Errorf("last line: %.80q, %v, after the handler: %v", line, err, returns.Load())
		}
		if rest, err := in.ReadString('\n'); err != nil || rest != "\n" {
			t.Errorf("%q, %v", rest, err)
		}
		_ = resp.Body.Close()
		s.Close()
	}
}
