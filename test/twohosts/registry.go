package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

// countingRegistry counts the bytes of blobs.
type countingRegistry struct {
	handler      http.Handler
	stored, sent atomic.Int64 // bytes received and sent
}

// serve listens on a free port of 127.0.0.1 until ctx ends, and returns the address.
func (r *countingRegistry) serve(ctx context.Context) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: r}
	context.AfterFunc(ctx, func() { server.Close() })
	go server.Serve(l)
	return l.Addr().String(), nil
}

// ServeHTTP counts, and passes the request on.
func (r *countingRegistry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	q.Body = &countedBody{q.Body, &r.stored}
	r.handler.ServeHTTP(&countedAnswer{w, &r.sent}, q)
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

type countedAnswer struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (a *countedAnswer) Write(p []byte) (int, error) {
	a.n.Add(int64(len(p)))
	return a.ResponseWriter.Write(p)
}

// forward accepts connections at one TCP address and connects each with another address, until ctx
// ends.
func forward(ctx context.Context, listen, to string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go join(c.(*net.TCPConn), to)
	}
}

func join(c *net.TCPConn, to string) {
	defer c.Close()
	other, err := net.Dial("tcp", to)
	if err != nil {
		fmt.Fprintf(os.Stderr, "forward: %v\n", err)
		return
	}
	defer other.Close()
	go func() {
		_, _ = io.Copy(other, c)
		_ = other.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, other)
}
