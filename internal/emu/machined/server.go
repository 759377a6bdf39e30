package machined

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

// maxBody bounds a request body in bytes.
const maxBody = 1 << 20

// server implements the init's API.
type server struct {
	config   machineapi.Config
	groups   groups
	daemon   daemon
	powerOff func() // called after the answer was sent
}

// NewHandler returns the API. The parameter cgroups is the cgroup v2 directory that contains "exec"
// and "daemon". If this parameter is empty, as in tests on a host, programs are killed only with
// their process groups. The handler calls powerOff after it has answered a request to power off.
func NewHandler(config machineapi.Config, cgroups string, powerOff func()) http.Handler {
	s := &server{config: config, powerOff: powerOff, groups: groups{next: new(atomic.Uint64)}}
	s.daemon.pause = daemonPause
	if cgroups != "" {
		s.groups.root = cgroups + "/exec"
		s.daemon.cgroup = cgroups + "/daemon"
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+machineapi.PathPing, s.ping)
	mux.HandleFunc("GET "+machineapi.PathSpace, s.space)
	mux.HandleFunc("POST "+machineapi.PathExec, s.exec)
	mux.HandleFunc("GET "+machineapi.PathDaemon, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, s.daemon.status())
	})
	mux.HandleFunc("PUT "+machineapi.PathDaemon, s.startDaemon)
	mux.HandleFunc("POST "+machineapi.PathPowerOff, func(w http.ResponseWriter, _ *http.Request) {
		s.daemon.abandon()
		w.WriteHeader(http.StatusAccepted)
		go s.powerOff()
	})
	return s.authorized(mux)
}

func (s *server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(s.config.Token)) != 1 {
			http.Error(w, "wrong or missing bearer token", http.StatusUnauthorized)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Printf("answer: %v", err)
	}
}

func (s *server) ping(w http.ResponseWriter, _ *http.Request) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	reply(w, machineapi.Ping{BootID: s.config.BootID, UptimeSeconds: float64(now.Nano()) / 1e9})
}

// space answers with the free bytes of the requested directories.
func (s *server) space(w http.ResponseWriter, r *http.Request) {
	free := machineapi.Space{}
	for _, dir := range r.URL.Query()["dir"] {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			http.Error(w, fmt.Sprintf("space of %s: %v", dir, err), http.StatusNotFound)
			return
		}
		free[dir] = st.Bavail * uint64(st.Bsize)
	}
	reply(w, free)
}

func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != machineapi.Upgrade {
		http.Error(w, "exec needs Upgrade: "+machineapi.Upgrade, http.StatusUpgradeRequired)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + machineapi.Upgrade + "\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return // the client has left, and nothing was started
	}
	stream := struct {
		io.Reader
		io.Writer
	}{buffered.Reader, conn}
	if err := serveExec(stream, s.groups); err != nil {
		log.Printf("exec: client gone: %v", err)
	}
}

func (s *server) startDaemon(w http.ResponseWriter, r *http.Request) {
	var req machineapi.DaemonStart
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, "start daemon: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.daemon.start(req); err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errDaemonRuns) {
			status = http.StatusConflict
		}
		http.Error(w, err.Error(), status)
		return
	}
	reply(w, s.daemon.status())
}
