// The page that asks for a token. Only the daemon's own view shows it.
import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { Problem } from "./dialog";

// key is the key of local storage with the path of the session. Only the session's cookie makes the
// path useful, and scripts cannot read that.
const key = "view";

const go = (path: string) => location.replace(path + location.hash);

export function Login() {
  const [token, set] = useState("");
  const [problem, setProblem] = useState("");
  useEffect(() => {
    // Another tab may have a session.
    const path = localStorage.getItem(key) ?? "";
    if (!/^\/ui\/[A-Z0-9]+\/$/.test(path) || path === location.pathname) return;
    api.get(`${path}daemon`).then(() => go(path), () => localStorage.removeItem(key));
  }, []);
  const submit = async (e: Event) => {
    e.preventDefault();
    try {
      const { path } = await api.call<{ path: string }>("POST", "session", { token });
      localStorage.setItem(key, path);
      go(path);
    } catch (e) {
      setProblem((e as Error).message);
    }
  };
  return (
    <main class="page" id="main">
      <h1>Snapshots and sandboxes of this daemon</h1>
      <form class="login" onSubmit={submit}>
        <label for="token">Token</label>
        <input id="token" type="password" required autocomplete="current-password" value={token}
          onInput={(e) => set((e.target as HTMLInputElement).value)} />
        <button class="primary">Open</button>
      </form>
      <Problem text={problem} />
      <p class="explain">
        The page has the rights of the token, for twelve hours. The command <code>forkd token new</code> makes a token
        for the daemon.
      </p>
    </main>
  );
}

// logOut ends the session.
export async function logOut(): Promise<void> {
  await api.send("DELETE", "session");
  localStorage.removeItem(key);
  location.assign("/ui/");
}
