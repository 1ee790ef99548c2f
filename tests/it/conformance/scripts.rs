//! The scripts and the library of functions, composed as `scripts.json` says.

use crate::server::Server;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Composition {
    pub scripts: BTreeMap<String, Script>,
    pub library: Library,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub files: Vec<String>,
    pub flags: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    pub name: String,
    #[serde(rename = "H")]
    pub hashed: Vec<String>,
    pub text: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Part {
    Text(String),
    File { file: String },
}

/// How each script is called: the command, and the text or the function.
pub struct Scripts(pub BTreeMap<String, (&'static str, String)>);

pub fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

pub fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn composition() -> Composition {
    read(&suite().join("scripts.json"))
}

pub fn lua(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(file);
    std::fs::read_to_string(path).expect("a script")
}

/// The library of functions: its name and its text.
pub fn library() -> (String, String) {
    let library = composition().library;
    let hashed: String = library.hashed.iter().map(|file| lua(file)).collect();
    let h = format!("_{}", &redis::Script::new(&hashed).get_hash()[..16]);
    let text = library.text.iter().map(|part| match part {
        Part::Text(text) => text.replace("_H", &h),
        Part::File { file } => lua(file),
    });
    (library.name.replace("_H", &h), text.collect())
}

impl Scripts {
    /// Composed of files that `change` may have changed.
    pub fn new(flagged: bool, change: impl Fn(&str, String) -> String) -> Self {
        let compose = |script: Script| {
            let text: String = script.files.iter().map(|file| change(file, lua(file))).collect();
            match (flagged, script.flags.as_str()) {
                (false, _) => text,
                (true, "") => format!("#!lua\n{text}"),
                (true, flags) => format!("#!lua flags={flags}\n{text}"),
            }
        };
        let scripts = composition().scripts.into_iter();
        Self(
            scripts
                .map(|(name, script)| (name, ("EVAL", compose(script))))
                .collect(),
        )
    }

    pub fn released(flagged: bool) -> Self {
        Self::new(flagged, |_, text| text)
    }

    /// Loads the library.
    pub async fn functions(server: &Server) -> Self {
        let (library, text) = library();
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(text);
        let loaded: String = load.query_async(&mut server.redis().await).await.expect("a library");
        assert_eq!(loaded, library);
        let names = composition().scripts.into_keys();
        Self(
            names
                .map(|name| (name.clone(), ("FCALL", format!("{library}_{name}"))))
                .collect(),
        )
    }
}
