package docker

import (
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/bake"
)

func (s *Server) ping(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache, no-store, must-revalidate")
	w.Header().Set("Pragma", "no-cache")
	w.Header().Set("Builder-Version", "1") // the classic builder; unserved() refuses its requests by name
	_, _ = w.Write([]byte("OK"))           // fails only if the client has left
	return nil
}

// component is a program in the answer to a request for the version.
type component struct {
	Name    string
	Version string
	Details map[string]string
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) error {
	kernel := kernelVersion()
	details := map[string]string{"ApiVersion": apiVersion(maxVersion), "MinAPIVersion": apiVersion(minVersion),
		"Os": runtime.GOOS, "Arch": runtime.GOARCH, "KernelVersion": kernel, "GoVersion": runtime.Version()}
	return face.WriteJSON(w, r, http.StatusOK, struct {
		Platform                                                                          struct{ Name string }
		Components                                                                        []component
		Version, ApiVersion, MinAPIVersion, GitCommit, GoVersion, Os, Arch, KernelVersion string
		BuildTime                                                                         string
	}{struct{ Name string }{runtimeName}, []component{{"Engine", s.Version, details}}, s.Version, details["ApiVersion"],
		details["MinAPIVersion"], "", details["GoVersion"], details["Os"], details["Arch"], kernel, ""})
}

func kernelVersion() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// info describes the host. It has the fields that clients read; Docker has more.
func (s *Server) info(w http.ResponseWriter, r *http.Request) error {
	counts := map[string]int{}
	all := s.all(r)
	for _, c := range all {
		counts[c.status()]++
	}
	name, err := os.Hostname()
	dir := s.Dir
	if err != nil || prefixOf(r) != "" { // a client with a prefix does not learn names of the host
		name, dir = runtimeName, ""
	}
	return face.WriteJSON(w, r, http.StatusOK, map[string]any{
		"ID": digest("host " + name), "Name": name, "ServerVersion": s.Version, "OperatingSystem": "forkd",
		"Containers": len(all), "ContainersRunning": counts[running], "ContainersPaused": counts[paused],
		"ContainersStopped": counts[exited] + counts[created], "Images": len(s.images(r)),
		"Driver": runtimeName, "DriverStatus": [][]string{}, "SystemStatus": nil,
		"OSType": "linux", "Architecture": machine(), "KernelVersion": kernelVersion(), "NCPU": runtime.NumCPU(),
		"MemTotal": bake.HostMemoryMiB() << 20, "SystemTime": docktime(time.Now()), "LoggingDriver": "json-file",
		"CgroupDriver": "cgroupfs", "CgroupVersion": "2", "MemoryLimit": true, "SwapLimit": true, "CpuCfsPeriod": true,
		"CpuCfsQuota": true, "CPUShares": true, "PidsLimit": false, "IPv4Forwarding": true, "BridgeNfIptables": true,
		"BridgeNfIp6tables": true, "Debug": false,
		"DefaultRuntime": runtimeName, "Runtimes": map[string]any{runtimeName: map[string]string{"path": "forkd-vmm"}},
		"Plugins":         map[string][]string{"Volume": {}, "Network": {"bridge", noNetwork}, "Log": {"json-file"}},
		"Swarm":           map[string]string{"LocalNodeState": "inactive", "NodeID": ""},
		"SecurityOptions": []string{}, "Warnings": []string{}, "Labels": []string{}, "ExperimentalBuild": false,
		"RegistryConfig": map[string]any{"IndexConfigs": map[string]any{}, "InsecureRegistryCIDRs": []string{},
			"Mirrors": []string{}},
		"IndexServerAddress": "https://index.docker.io/v1/", "DockerRootDir": dir, "HttpProxy": "", "HttpsProxy": "",
		"NoProxy": "", "LiveRestoreEnabled": true, "Isolation": "", "InitBinary": "forkd-agent", "NGoroutines": 0,
	})
}

// machine returns the architecture in the terms of uname.
func machine() string {
	if runtime.GOARCH == "amd64" {
		return "x86_64"
	}
	return strings.ToLower(runtime.GOARCH)
}
