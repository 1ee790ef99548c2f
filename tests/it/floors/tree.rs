//! The sources of the library as modules, and the arrows between them.
//!
//! An arrow leads from the module that has an import to the module that has what the import names. Re-exports are followed,
//! because a folder that re-exports an item does not have it.

use super::scan::{Path, Scan, scan};
use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};

/// The sources, and what is known of them together.
pub(super) struct Tree {
    pub files: BTreeMap<Vec<String>, File>,
}

pub(super) struct File {
    /// Relative to the repository.
    pub path: String,
    pub scan: Scan,
    /// Only tests have it.
    pub is_of_tests: bool,
}

/// An import or a path in code: `from` is the module that has it, `to` the one that has what it names.
#[derive(Debug, Clone)]
pub(super) struct Arrow {
    pub from: Vec<String>,
    pub to: Vec<String>,
    pub place: String,
    pub said: String,
}

impl Tree {
    /// Of paths relative to `src/`, with the sources.
    pub(super) fn new(sources: impl IntoIterator<Item = (String, String)>) -> Self {
        let file = |(path, source): (String, String)| {
            let name = path.trim_end_matches(".rs").trim_end_matches("/mod");
            let module = name.split('/').filter(|part| *part != "lib").map(str::to_owned);
            let file = File {
                path: format!("src/{path}"),
                scan: scan(&source),
                is_of_tests: false,
            };
            (module.collect(), file)
        };
        let mut tree = Self {
            files: sources.into_iter().map(file).collect(),
        };
        let of_tests: Vec<Vec<String>> = tree
            .files
            .iter()
            .flat_map(|(module, file)| {
                let declared = file.scan.modules.iter().filter(|(_, of_tests)| *of_tests);
                declared.map(|(name, _)| [module.as_slice(), std::slice::from_ref(name)].concat())
            })
            .collect();
        for (module, file) in &mut tree.files {
            file.is_of_tests = of_tests.iter().any(|tests| module.starts_with(tests));
        }
        tree
    }

    /// Of this repository.
    pub(super) fn real() -> Self {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut folders, mut sources) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in read_dir(folder).expect("a folder of sources") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let name = path.strip_prefix(&root).expect("in src").to_string_lossy().into_owned();
                    sources.push((name, read_to_string(&path).expect("a source")));
                }
            }
        }
        assert!(sources.len() > 30, "only {} sources were found", sources.len());
        Self::new(sources)
    }

    /// A path from the root of the crate. `None`: it leads out of the crate.
    fn absolute(&self, module: &[String], path: &Path) -> Option<Vec<String>> {
        let mut here = [module, &path.inside].concat();
        let mut rest = path.segments.as_slice();
        match rest.first()?.as_str() {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => return Some([&here, &rest[1..]].concat()),
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
                return Some([&here, rest].concat());
            }
            _ => {}
        }
        let child = [module, &rest[..1]].concat();
        if self.files.contains_key(&child) {
            return Some([module, rest].concat());
        }
        // A module that is in scope by an import.
        let imports = self.files[module].scan.paths.iter();
        let mut named = imports.filter(|other| other.import.as_ref().is_some_and(|import| import.name == rest[0]));
        let import = named.find(|other| other.segments != path.segments && is_local(other))?;
        let target = self.resolved(&self.absolute(module, import)?);
        (target.1.is_empty()).then(|| [target.0.as_slice(), &rest[1..]].concat())
    }

    /// The module that has what a path names, through all re-exports, and what is left of the path.
    fn resolved(&self, path: &[String]) -> (Vec<String>, Vec<String>) {
        let mut path = path.to_vec();
        // More re-exports than that are a circle.
        for _ in 0..16 {
            let known = (0..=path.len())
                .rev()
                .find(|end| self.files.contains_key(&path[..*end]));
            let (module, rest) = path.split_at(known.unwrap_or(0));
            let Some(next) = rest.first().and_then(|name| self.re_export(module, name)) else {
                return (module.to_vec(), rest.to_vec());
            };
            path = [next.as_slice(), &rest[1..]].concat();
        }
        (Vec::new(), path)
    }

    fn re_export(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let file = self.files.get(module)?;
        let mut imports = file
            .scan
            .paths
            .iter()
            .filter_map(|path| Some((path, path.import.as_ref()?)));
        let (path, _) = imports.find(|(path, import)| {
            import.is_public && import.name == name && path.inside.is_empty() && is_local_or_child(path, file)
        })?;
        let target = self.absolute(module, path)?;
        (target != [module, &[name.to_owned()]].concat()).then_some(target)
    }

    /// All arrows between different files. What a module re-exports of its own folder is its table of contents, and none.
    pub(super) fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = Vec::new();
        for (module, file) in &self.files {
            for path in &file.scan.paths {
                let Some(absolute) = self.absolute(module, path) else {
                    continue;
                };
                let (to, _) = self.resolved(&absolute);
                let is_public = path.import.as_ref().is_some_and(|import| import.is_public);
                if to == *module || is_public && to.starts_with(module) {
                    continue;
                }
                let arrow = Arrow {
                    from: module.clone(),
                    to,
                    place: format!("{}:{}", file.path, path.line),
                    said: path.segments.join("::"),
                };
                let is_said = |said: &Arrow| said.place == arrow.place && said.to == arrow.to;
                if !arrows.iter().any(is_said) {
                    arrows.push(arrow);
                }
            }
        }
        arrows
    }

    pub(super) fn is_of_tests(&self, module: &[String]) -> bool {
        self.files.get(module).is_some_and(|file| file.is_of_tests)
    }

    pub(super) fn name(&self, module: &[String]) -> &str {
        self.files.get(module).map_or("src/lib.rs", |file| &file.path)
    }
}

fn is_local(path: &Path) -> bool {
    matches!(
        path.segments.first().map(String::as_str),
        Some("crate" | "self" | "super")
    )
}

fn is_local_or_child(path: &Path, file: &File) -> bool {
    let first = path.segments.first();
    is_local(path) || first.is_some_and(|first| file.scan.modules.iter().any(|(name, _)| name == first))
}
