package face

import "time"

// Limits bound the resources of the daemon that clients and guests can hold. A zero field takes its
// default, which is the number at the end of each comment. One client can have at most three
// quarters of the calls, streams and followers.
type Limits struct {
	Calls      int           // concurrent calls to guests, and operations on sandboxes and snapshots; 512 of each
	PerSandbox int           // concurrent calls to one guest; 128
	Memory     int           // bytes of bodies and answers of all requests, except small bodies and answers; 512 MiB
	Reads      int           // places of each of the gates Reads, Ends and Open; 2048
	Lists      int           // concurrent requests for lists; one client may have half of them; 64
	Stall      time.Duration // time after which a request's body or a file that makes no progress is cut off; 2 minutes

	// Maximum number of concurrent streams to ports of all guests together and, in the fields with
	// PerSandbox, to ports of one guest. Streams by signed URLs have limits of their own, Signed
	// and SignedPerSandbox, because anyone who has the URL can open them. An agent carries at most
	// agentproto.MaxDialed streams of both kinds together.
	Streams, StreamsPerSandbox int           // 512, 64
	Signed, SignedPerSandbox   int           // 256, 48
	Idle                       time.Duration // time after which a stream that makes no progress is closed; an hour

	// Rate of requests by signed URLs to one sandbox, per second, and the burst after a time
	// without such requests.
	SignedPerSecond float64 // 100
	SignedBurst     int     // 1000, because a page of a development server loads hundreds of files

	// Maximum number of concurrent event streams, and also maximum number of concurrent answers
	// with console output. One client can have half of each; 128.
	Followers int
	Keepalive time.Duration // interval of keepalive comments in idle event streams; 15 seconds
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		def   int
	}{
		{&l.Calls, 512}, {&l.PerSandbox, 128}, {&l.Reads, 2048}, {&l.Lists, 64}, {&l.Memory, 512 << 20}, {&l.Streams, 512},
		{&l.StreamsPerSandbox, 64},
		{&l.Signed, 256}, {&l.SignedPerSandbox, 48}, {&l.SignedBurst, 1000}, {&l.Followers, 128},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if l.SignedPerSecond == 0 {
		l.SignedPerSecond = 100
	}
	if l.Stall == 0 {
		l.Stall = 2 * time.Minute
	}
	if l.Idle == 0 {
		l.Idle = time.Hour
	}
	if l.Keepalive == 0 {
		l.Keepalive = 15 * time.Second
	}
	return l
}
