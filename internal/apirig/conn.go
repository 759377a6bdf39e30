package apirig

import "net"

// OneConn returns a listener with a single connection.
func OneConn(conn net.Conn) net.Listener { return &oneConn{conn} }

type oneConn struct{ conn net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	conn := l.conn
	if l.conn = nil; conn == nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
