package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
)

// clientArg makes this program a client, which carries out one order after another. The client
// reads orders from standard input, and writes results to standard output. If tapArg follows, the
// client first connects its network namespace to the frame socket, which is its descriptor 3.
const (
	clientArg = "client"
	tapArg    = "tap"
)

// Operations of a client. The client sends an operation to the server as the first byte.
const (
	opDown    = 'd' // download
	opUp      = 'u' // upload
	opRequest = 'r' // exchange 64 bytes in both directions, repeatedly, on one connection
	opConnect = 'c' // connect, exchange one byte in both directions, and close
)

// order is an order for a client, and result is the result of an order.
type (
	order struct {
		Op   byte
		To   string
		Each time.Duration
	}
	result struct {
		MiBps    float64 // set only for opDown and opUp
		P50, P99 float64 // in microseconds; set only for opRequest and opConnect
		Error    string
	}
)

// Sizes in bytes: of one write during a transfer, and of one message of opRequest.
const (
	chunkBytes   = 256 << 10
	requestBytes = 64
)

// For an opConnect order, a client opens this number of connections (connects). It waits for
// connectPause before each connection. This rate is lower than forkd-net's limit of 500 new
// connections per second for a sandbox.
const (
	connects     = 100
	connectPause = 4 * time.Millisecond
)

// clientMain runs as a client and does not return.
func clientMain() {
	if len(os.Args) > 2 && os.Args[2] == tapArg {
		if err := joinTap(); err != nil {
			fmt.Fprintf(os.Stderr, "net: client: %v\n", err)
			os.Exit(1)
		}
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if in.Decode(&o) != nil {
			os.Exit(0)
		}
		r, err := o.carryOut()
		if err != nil {
			r.Error = err.Error()
		}
		if out.Encode(r) != nil {
			os.Exit(1)
		}
	}
}

func (o *order) carryOut() (r result, err error) {
	if o.Op == opConnect {
		return o.connect()
	}
	c, err := o.dial()
	if err != nil {
		return r, err
	}
	defer c.Close()
	switch o.Op {
	case opDown:
		return o.down(c)
	case opUp:
		return o.up(c)
	default:
		return o.requests(c)
	}
}

func (o *order) dial() (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp4", o.To, 10*time.Second)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{o.Op}); err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(o.Each + 20*time.Second))
}

func (o *order) down(c io.Reader) (r result, err error) {
	p, total, begin := make([]byte, chunkBytes), 0, time.Now()
	for time.Since(begin) < o.Each {
		n, err := c.Read(p)
		if err != nil {
			return r, err
		}
		total += n
	}
	r.MiBps = rate(total, time.Since(begin))
	return r, nil
}

// up(c) uploads, and counts the bytes that the server has received. Bytes that the server receives
// after the time is up also count, and so does the time until the server has received them.
func (o *order) up(c *net.TCPConn) (r result, err error) {
	p, begin := make([]byte, chunkBytes), time.Now()
	for time.Since(begin) < o.Each {
		if _, err := c.Write(p); err != nil {
			return r, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return r, err
	}
	var total uint64
	if err := binary.Read(c, binary.LittleEndian, &total); err != nil {
		return r, err
	}
	r.MiBps = rate(int(total), time.Since(begin))
	return r, nil
}

func rate(bytes int, took time.Duration) float64 { return float64(bytes) / (1 << 20) / took.Seconds() }

func (o *order) requests(c io.ReadWriter) (r result, err error) {
	p, begin := make([]byte, requestBytes), time.Now()
	var took []float64
	for last := begin; last.Sub(begin) < o.Each; {
		if _, err := c.Write(p); err != nil {
			return r, err
		}
		if _, err := io.ReadFull(c, p); err != nil {
			return r, err
		}
		now := time.Now()
		took = append(took, micros(now.Sub(last)))
		last = now
	}
	return quantiles(took), nil
}

func (o *order) connect() (r result, err error) {
	var took []float64
	for range connects {
		begin := time.Now()
		c, err := o.dial()
		if err != nil {
			return r, err
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		took = append(took, micros(time.Since(begin)))
		c.Close()
		if err != nil {
			return r, err
		}
		time.Sleep(connectPause)
	}
	return quantiles(took), nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func quantiles(took []float64) result {
	return result{P50: report.Quantile(took, 0.5), P99: report.Quantile(took, 0.99)}
}
