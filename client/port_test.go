package client_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/forkd/forkd/client"
)

// DialPort returns an error if the server does not upgrade the connection.
func TestDialPortOfSomethingElse(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello")) }))
	defer s.Close()
	c, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := c.DialPort(t.Context(), "sb-x", 80); err == nil {
		conn.Close()
		t.Error("an ordinary answer is taken for a connection")
	}
}
