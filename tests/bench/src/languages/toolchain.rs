//! Builds the drivers with the toolchains of their languages, into target/peers. A reason why that failed goes onto a page
//! of the repository, so it is short; what the tool itself said goes to stderr.

use super::driver::Kind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

const SOURCES: &str = "tests/bench/peers";
const BUILT: &str = "target/peers";

/// The first build downloads some 20 MB. A tool without a network may try for long.
const PATIENCE: Duration = Duration::from_secs(180);

/// Not in package-lock.json, because not every registry has it.
const RWLOCK: &str = "redis-rwlock@0.2.0";

const NPM: [&str; 5] = [
    "--prefer-offline",
    "--no-audit",
    "--no-fund",
    "--ignore-scripts",
    "--loglevel=error",
];

/// The command that starts the driver, but for the servers' URLs.
pub async fn build(kind: Kind) -> Result<Command, String> {
    let (sources, built) = (Path::new(SOURCES), Path::new(BUILT));
    if !sources.is_dir() {
        return Err(format!("there is no folder {SOURCES} here"));
    }
    eprintln!("peers: building the driver of {}", kind.language());
    match kind {
        Kind::Go => go(&sources.join("go"), built).await,
        Kind::Java => java(&sources.join("java"), &built.join("java")).await,
        Kind::Node => node(&sources.join("node"), &built.join("node")).await,
    }
}

async fn go(sources: &Path, built: &Path) -> Result<Command, String> {
    let driver = absolute(built)?.join("go/driver");
    let mut build = Command::new("go");
    build.arg("build").arg("-mod=readonly").arg("-o").arg(&driver).arg(".");
    build.current_dir(sources);
    execute("go build", build).await?;
    Ok(Command::new(driver))
}

/// pom.xml says where its result goes.
async fn java(sources: &Path, built: &Path) -> Result<Command, String> {
    let mut build = Command::new("mvn");
    build
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(sources.join("pom.xml"));
    build.arg("compile");
    execute("mvn compile", build).await?;
    let mut driver = Command::new("java");
    let (classes, libraries) = (built.join("classes"), built.join("lib/*"));
    driver
        .arg("-cp")
        .arg(format!("{}:{}", classes.display(), libraries.display()));
    driver.arg("Driver");
    Ok(driver)
}

/// npm puts its packages beside package.json, so the sources are copied away from the repository.
async fn node(sources: &Path, built: &Path) -> Result<Command, String> {
    let failed = |error: std::io::Error| format!("cannot copy the driver: {error}");
    std::fs::create_dir_all(built).map_err(failed)?;
    for file in ["package.json", "package-lock.json", ".npmrc", "driver.mjs"] {
        std::fs::copy(sources.join(file), built.join(file)).map_err(failed)?;
    }
    let mut build = Command::new("npm");
    build.arg("ci").args(NPM).current_dir(built);
    execute("npm ci", build).await?;
    let mut build = Command::new("npm");
    build
        .args(["install", "--no-save", "--no-package-lock"])
        .args(NPM)
        .arg(RWLOCK);
    build.current_dir(built);
    // The driver itself says that this package is missing, and still offers its floor.
    if let Err(why) = execute(&format!("npm install {RWLOCK}"), build).await {
        eprintln!("peers: {why}");
    }
    let mut driver = Command::new("node");
    driver.arg(built.join("driver.mjs"));
    Ok(driver)
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

async fn execute(what: &str, mut command: Command) -> Result<(), String> {
    // What a tool prints to stdout would stand in the bench's own table.
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let tool = command.as_std().get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{tool} is not installed"),
        _ => format!("{tool} does not start: {error}"),
    })?;
    match timeout(PATIENCE, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err(format!("{what} failed")),
        Ok(Err(error)) => Err(format!("{what}: {error}")),
        Err(_) => Err(format!("{what} took more than {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tool_that_is_missing_or_fails_is_a_reason() {
        let missing = execute("x", Command::new("no-such-tool-of-fairlock")).await;
        assert_eq!(missing, Err("no-such-tool-of-fairlock is not installed".to_owned()));
        assert_eq!(
            execute("false build", Command::new("false")).await,
            Err("false build failed".to_owned())
        );
        assert_eq!(execute("true build", Command::new("true")).await, Ok(()));
    }
}
