// Command apiserver runs a Kubernetes API server and its etcd in one process, for the tests of the
// module kube. It is the unmodified kube-apiserver with RBAC and admission, but without
// controllers, scheduler and kubelets: the tests play their part.
//
//	apiserver -dir DIR -port PORT [-- FLAG-OF-KUBE-APISERVER...]
//
// DIR keeps etcd's data and all keys, so a second process with the same DIR and PORT continues
// where the first one ended. The first start writes DIR/token, the token of a user in the group
// system:masters. The server writes DIR/apiserver.crt, the certificate by which clients recognize
// it.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	dir := flag.String("dir", "", "directory of all files")
	port := flag.Int("port", 0, "port at 127.0.0.1")
	flag.Parse()
	if err := run(*dir, *port, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

func run(dir string, port int, more []string) error {
	if !filepath.IsAbs(dir) || port == 0 {
		return errors.New("want -dir with an absolute path, and -port")
	}
	key, token := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "token")
	if err := errors.Join(once(key, newKey), once(token, newToken)); err != nil {
		return err
	}
	text, err := os.ReadFile(token)
	if err != nil {
		return err
	}
	users := filepath.Join(dir, "users.csv")
	if err := os.WriteFile(users, fmt.Appendf(nil, "%s,admin,admin,system:masters\n", text), 0o600); err != nil {
		return err
	}
	socket := filepath.Join(dir, "etcd.sock")
	if err := startEtcd(filepath.Join(dir, "etcd"), socket); err != nil {
		return err
	}
	// An outer process ends this one by SIGKILL or SIGTERM. The command waits for SIGTERM itself.
	command := app.NewAPIServerCommand()
	command.SetArgs(append([]string{
		"--etcd-servers=unix://" + socket,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + dir,
		"--token-auth-file=" + users,
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--endpoint-reconciler-type=none",
		// Without this plugin, pods need no service account, which a controller would have to make.
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false",
	}, more...))
	return command.Execute()
}

// once writes a file, unless it exists.
func once(path string, content func() ([]byte, error)) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := content()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func newToken() ([]byte, error) { return []byte(rand.Text()), nil }

// newKey returns the key that signs the tokens of service accounts.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// startEtcd starts an etcd that serves only the unix socket, and waits until it is ready.
func startEtcd(dir, socket string) error {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "error"
	cfg.UnsafeNoFsync = true // the tests kill processes, not machines
	at := []url.URL{{Scheme: "unix", Host: "", Path: socket}}
	peer := []url.URL{{Scheme: "unix", Host: "", Path: socket + ".peer"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at, at
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return nil
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}
