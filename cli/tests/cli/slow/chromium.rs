//! A headless Chromium, driven by the DevTools protocol over a pipe: JSON, with a zero byte after each message.

use fairlock_support::server::{PATIENCE, soon};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A name that this browser takes for this host, as after a DNS rebinding.
pub const REBOUND: &str = "rebound.example";

const NAMES: [&str; 5] = [
    "chromium",
    "chromium-headless-shell",
    "google-chrome",
    "chrome",
    "chromium-browser",
];

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: BufReader<ChildStdout>,
    dir: PathBuf,
    session: Option<String>,
    sent: u64,
    /// What the page's console said, and exceptions that nobody caught.
    pub complaints: Vec<String>,
    /// The addresses that the page asked for.
    pub requested: Vec<String>,
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = NAMES
        .iter()
        .flat_map(|name| places.iter().map(move |place| place.join(name)));
    let found = candidates.into_iter().find(|candidate| candidate.is_file());
    found.expect("a Chromium on the PATH: use `make browser`, which installs it")
}

impl Browser {
    pub async fn start() -> Self {
        let program = program();
        let dir = std::env::temp_dir().join(format!("fairlock-browser-{}", uuid::Uuid::new_v4()));
        let mut command = Command::new("sh");
        // The browser reads commands from descriptor 3 and writes messages to descriptor 4.
        command
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(program);
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--no-first-run",
        ]);
        // The tests may run as root, and /dev/shm may be small: both end a browser at its start.
        command.args([
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
        ]);
        command.arg(format!(
            "--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        ));
        command
            .arg(format!("--user-data-dir={}", dir.display()))
            .arg("about:blank");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("a shell");
        let mut browser = Self {
            commands: child.stdin.take().unwrap(),
            messages: BufReader::new(child.stdout.take().unwrap()),
            child,
            dir,
            session: None,
            sent: 0,
            complaints: Vec::new(),
            requested: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    /// Sends a command and waits for its reply.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let text = message.to_string() + "\0";
        self.commands
            .write_all(text.as_bytes())
            .await
            .expect("the browser reads");
        loop {
            let message = self.message().await;
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    async fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        let read = soon("a message of the browser", self.messages.read_until(0, &mut bytes)).await;
        assert!(read.is_ok_and(|read| read > 0), "the browser ended");
        bytes.pop();
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(url.to_owned());
            }
            "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Page.javascriptDialogOpening" => {
                self.complaints.push(params.to_string());
            }
            // Advice to those who write pages comes as `verbose`.
            "Log.entryAdded" if params["entry"]["level"] != "verbose" => {
                self.complaints.push(params["entry"]["text"].to_string())
            }
            _ => {}
        }
    }

    pub async fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address})).await;
        self.until("the page is there", "document.readyState === 'complete'")
            .await;
    }

    /// The value of an expression in the page, which may be a promise.
    pub async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let reply = self.call("Runtime.evaluate", params).await;
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&mut self, what: &str, expression: &str) {
        let begun = Instant::now();
        while self.value(expression).await != true {
            if begun.elapsed() > PATIENCE {
                let page = self.value("document.body.innerText").await;
                panic!("not within {PATIENCE:?}: {what}\n{page}\n{:?}", self.complaints);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until that element has that text in it.
    pub async fn shows(&mut self, id: &str, text: &str) {
        let expression = format!(
            "document.getElementById({}).innerText.includes({})",
            json!(id),
            json!(text)
        );
        self.until(&format!("{id} shows {text}"), &expression).await;
    }

    /// As a click does; the element has to be there.
    pub async fn click(&mut self, selector: &str) {
        self.value(&format!("document.querySelector({}).click()", json!(selector)))
            .await;
    }

    /// As somebody who types does.
    pub async fn fill(&mut self, id: &str, text: &str) {
        let (id, text) = (json!(id), json!(text));
        let fill = format!(
            "{{ const field = document.getElementById({id}); field.value = {text}; field.dispatchEvent(new Event('input')); }}"
        );
        self.value(&fill).await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
