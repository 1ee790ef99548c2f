//! A PostgreSQL server: the one that `DATABASE_URL` names, or a private one in a temporary directory.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Postgres {
    url: String,
    /// Dropped, it is stopped and its directory removed.
    _private: Option<Private>,
}

impl Postgres {
    /// `Err`: why there is none.
    pub(crate) async fn find_or_start() -> Fallible<Result<Self, String>> {
        if let Ok(url) = std::env::var("DATABASE_URL") {
            return Ok(Ok(Self { url, _private: None }));
        }
        let Some(programs) = programs() else {
            return Ok(Err(
                "no initdb and postgres found; install PostgreSQL or set DATABASE_URL".to_owned(),
            ));
        };
        let Some(user) = User::for_servers() else {
            return Ok(Err(
                "PostgreSQL does not run as root, and no user postgres or nobody was found".to_owned(),
            ));
        };
        let private = Private::start(programs, user)?;
        let url = format!("host=127.0.0.1 port={} user=postgres", private.port);
        let begun = Instant::now();
        while let Err(error) = connect(&url).await {
            if begun.elapsed() > PATIENCE {
                return Err(format!("PostgreSQL did not come up: {error}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Ok(Self {
            url,
            _private: Some(private),
        }))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends with the client, who is told of its errors.
    tokio::spawn(connection);
    Ok(client)
}

/// Where its programs are: on the `PATH`, or where distributions put them.
fn programs() -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let has_all = |place: &PathBuf| {
        ["initdb", "postgres", "pg_ctl"]
            .iter()
            .all(|name| place.join(name).exists())
    };
    places.into_iter().find(has_all)
}

/// Whom the server runs as; `None` in it: as we do.
#[derive(Clone, Copy)]
struct User(Option<(u32, u32)>);

impl User {
    fn for_servers() -> Option<Self> {
        let number = |option: &str, user: &str| -> Option<u32> {
            let output = Command::new("id")
                .arg(option)
                .args(Some(user).filter(|user| !user.is_empty()))
                .output();
            String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
        };
        if number("-u", "")? != 0 {
            return Some(Self(None));
        }
        let users = ["postgres", "nobody"].into_iter();
        let mut ids = users.filter_map(|user| Some((number("-u", user)?, number("-g", user)?)));
        ids.next().map(|ids| Self(Some(ids)))
    }
}

/// A server of our own, in a directory of its own.
struct Private {
    programs: PathBuf,
    user: User,
    dir: PathBuf,
    port: u16,
}

impl Private {
    fn start(programs: PathBuf, user: User) -> Fallible<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("fairlock-postgres-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let private = Self {
            programs,
            user,
            dir,
            port,
        };
        if let User(Some((uid, gid))) = user {
            chown(&private.dir, Some(uid), Some(gid))?;
        }
        let data = private.data();
        let ways = ["--username", "postgres", "--auth", "trust", "--no-sync", "--pgdata"];
        private.run("initdb", ways.map(OsStr::new).into_iter().chain([data.as_os_str()]))?;
        // Nobody misses what it has written: no fsync.
        let settings = format!("-F -h 127.0.0.1 -p {port} -k {}", private.dir.display());
        let log = private.dir.join("log");
        let start = ["-w", "-o", &settings, "-l"].map(OsStr::new).into_iter();
        let start = start.chain([log.as_os_str(), OsStr::new("-D"), data.as_os_str(), OsStr::new("start")]);
        private.run("pg_ctl", start)?;
        Ok(private)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn run<'a>(&self, program: &str, arguments: impl Iterator<Item = &'a OsStr>) -> Fallible<()> {
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).current_dir(Path::new("/")).stdin(Stdio::null());
        // What it starts would keep a pipe open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let User(Some((uid, gid))) = self.user {
            command.uid(uid).gid(gid);
        }
        let status = command.status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{program}: {status}; see {}", self.dir.display()).into())
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let data = self.data();
        let stop = ["stop", "-m", "immediate", "-D"].map(OsStr::new).into_iter();
        // Nothing can be done about a failure here.
        let _ = self.run("pg_ctl", stop.chain([data.as_os_str()]));
        let _ = fs::remove_dir_all(&self.dir);
    }
}
