package face

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// If a client leaves before it has sent its whole body, WhileConnected notices this, even if the
// daemon does not read the body.
func TestClientsThatHangUpAreNoticed(t *testing.T) {
	begun, ended := make(chan bool), make(chan bool)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx, stop := WhileConnected(r.Context())
		defer stop()
		select {
		case <-ctx.Done():
			t.Error("ended while the client was connected")
		case <-time.After(hangUpInterval * 3 / 2):
		}
		begun <- true
		select {
		case <-ctx.Done():
			ended <- true
		case <-time.After(20 * time.Second):
			ended <- false
		}
	}))
	server.Config.ConnContext = WithConn
	server.Start()
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\npart"); err != nil {
		t.Fatal(err)
	}
	<-begun
	c.Close()
	if !<-ended {
		t.Error("the client's leaving was not noticed")
	}
}
