//! The sources of the library as modules, and the arrows between their files.
//!
//! A source becomes code without comments and literals. The paths in that code, in imports and elsewhere, are followed through
//! the re-exports: an arrow leads from the file that has a path to the file that has what the path names. The scanner knows
//! no `cfg` but `test`, so it reads the code of every feature. If in doubt, it finds too much.

use std::collections::BTreeMap;

/// A source without comments and literals, but for literals that are a command or the name of a script.
fn code(source: &str) -> String {
    let (mut code, mut rest) = (String::new(), source);
    while let Some(sign) = rest.chars().next() {
        let until = |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
        let mut is_escaped = true;
        let is_end = |next: char| {
            let is_end = next == sign && !is_escaped;
            is_escaped = next == '\\' && !is_escaped;
            is_end
        };
        let hashes = rest.len() - 1 - rest[sign.len_utf8()..].trim_start_matches('#').len();
        let length = match sign {
            '/' if rest.starts_with("//") => until(0, "\n"),
            '/' if rest.starts_with("/*") => until(2, "*/"),
            'r' if rest[1 + hashes..].starts_with('"') => until(2 + hashes, &format!("\"{}", &rest[1..=hashes])),
            '\'' if rest.chars().nth(2) != Some('\'') && !rest[1..].starts_with('\\') => 1,
            '"' | '\'' => rest.find(is_end).map_or(rest.len(), |at| at + 1),
            _ => sign.len_utf8(),
        };
        let (text, after) = rest.split_at(length);
        let literal = text.trim_matches(['r', '#', '"']);
        let is_command = |sign: char| sign.is_ascii_uppercase() || sign == ' ';
        if text == sign.to_string() {
            code += text;
        } else if literal.len() > 1 && literal.chars().all(is_command) || literal.ends_with(".lua") {
            code += &format!("\"{literal}\"");
        }
        rest = after;
    }
    code
}

/// Code without the items that only tests have.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("#[cfg(");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (cfg, item) = part.split_once(")]").unwrap_or((part, ""));
        let mut depth = 0;
        let is_end = |sign: char| {
            depth += i32::from("{([".contains(sign)) - i32::from("})]".contains(sign));
            depth == 0 && ";,}".contains(sign)
        };
        let is_of_tests = cfg == "test" || cfg.starts_with("all(test,");
        let end = item.find(is_end).filter(|_| is_of_tests);
        kept += &item[end.map_or(0, |end| end + 1)..];
    }
    kept
}

/// A word or a path.
pub(super) struct Path {
    pub text: String,
    /// What an import brings into scope, otherwise empty.
    name: String,
    is_public: bool,
}

/// The words and paths of some code, as seen from the file: an inline module takes one `super` away. `a::{b, c}` has two.
pub(super) fn paths(code: &str) -> Vec<Path> {
    let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let mut add = |text: &str, name: &str, is_public, open: &[bool]| {
        let supers = open.iter().filter(|is_module| **is_module);
        let text = supers.fold(text, |text, _| text.strip_prefix("super::").unwrap_or(text));
        let (text, name) = (text.to_owned(), name.to_owned());
        found.push(Path { text, name, is_public });
    };
    for statement in code.split(';') {
        let import = statement
            .rsplit_once("use ")
            .filter(|(before, _)| !before.ends_with(is_word));
        let (before, import) = import.unwrap_or((statement, ""));
        for part in before.split_inclusive(['{', '}']) {
            let words = part.split(|sign| !is_word(sign) && sign != ':');
            let words: Vec<_> = words
                .map(|word| word.trim_matches(':'))
                .filter(|word| !word.is_empty())
                .collect();
            words.iter().for_each(|word| add(word, "", false, &open));
            if part.ends_with('{') {
                open.push(words.iter().rev().nth(1) == Some(&"mod"));
            } else if part.ends_with('}') {
                open.pop();
            }
        }
        let is_public = before.trim_end().ends_with("pub") || before.trim_end().ends_with(')');
        expand(import.trim(), &mut |path| {
            let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
            let path = path.strip_suffix("::self").unwrap_or(path);
            let name = path.rsplit("::").next().filter(|_| alias.is_empty());
            add(path, name.unwrap_or(alias), is_public, &open);
        });
    }
    found
}

/// Takes the groups of an import apart.
fn expand(import: &str, found: &mut dyn FnMut(&str)) {
    let Some((before, group)) = import.split_once('{') else {
        return found(import);
    };
    let mut depth = 0;
    let group = group.strip_suffix('}').unwrap_or(group).split(|sign| {
        depth += i32::from(sign == '{') - i32::from(sign == '}');
        sign == ',' && depth == 0
    });
    for part in group.map(str::trim).filter(|part| !part.is_empty()) {
        expand(&format!("{before}{part}"), found);
    }
}

/// The module of the file that has a path, the module of the file that has what it names, and the path.
pub(super) type Arrow = (String, String, String);

/// The code of each module but for items of tests, and all its paths. `lib.rs` is the module with the empty name.
pub(super) struct Tree(pub BTreeMap<String, (String, Vec<Path>)>);

impl Tree {
    /// Of paths relative to `src/`, with the sources.
    pub(super) fn new<S: AsRef<str>>(sources: impl IntoIterator<Item = (S, S)>) -> Self {
        let file = |(path, source): (S, S)| {
            let name = path.as_ref().trim_end_matches(".rs").trim_end_matches("/mod");
            let all = code(source.as_ref());
            let name = name.trim_start_matches("lib").replace('/', "::");
            (name, (without_tests(&all), paths(&all)))
        };
        Self(sources.into_iter().map(file).collect())
    }

    /// Whether only tests have a file: the module around it declares it under `cfg(test)`.
    pub(super) fn is_of_tests(&self, module: &str) -> bool {
        let (around, name) = module.rsplit_once("::").unwrap_or(("", module));
        let around_it = self.0.get(around).filter(|_| !module.is_empty());
        let is_hidden = around_it.is_some_and(|(code, _)| !code.contains(&format!("mod {name};")));
        is_hidden || !module.is_empty() && self.is_of_tests(around)
    }

    /// What a name in the scope of a file is, from the root of the crate.
    fn imported(&self, module: &str, name: &str, depth: usize) -> Option<String> {
        let mut paths = self.0.get(module)?.1.iter();
        let path = paths.find(|path| path.name == name && !matches!(name, "" | "*"))?;
        self.absolute(module, &path.text, depth + 1)
    }

    /// A path from the root of the crate. `None`: it leads out of the crate, or the re-exports run in a circle.
    fn absolute(&self, module: &str, path: &str, depth: usize) -> Option<String> {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let join = |before: &str, after: &str| format!("{before}::{after}").trim_matches(':').to_owned();
        let around = module.rsplit_once("::").map_or("", |(around, _)| around);
        let child = join(module, first);
        match first {
            _ if depth > 16 => None,
            "crate" => Some(rest.to_owned()),
            "self" => Some(join(module, rest)),
            "super" if rest.starts_with("super") => self.absolute(around, rest, depth + 1),
            "super" => Some(join(around, rest)),
            _ if self.0.contains_key(&child) => Some(join(&child, rest)),
            name => Some(join(&self.imported(module, name, depth)?, rest)),
        }
    }

    /// The module of the file that has what a path names, through all re-exports.
    fn resolved(&self, path: &str, depth: usize) -> String {
        let mut module = path;
        while !module.is_empty() && !self.0.contains_key(module) {
            module = module.rsplit_once("::").map_or("", |(around, _)| around);
        }
        let rest = path[module.len()..].trim_start_matches(':');
        let (name, after) = rest.split_once("::").unwrap_or((rest, ""));
        match self.imported(module, name, depth).filter(|_| depth < 16) {
            Some(next) => self.resolved(format!("{next}::{after}").trim_matches(':'), depth + 1),
            None => module.to_owned(),
        }
    }

    /// All arrows. What a module re-exports of its own folder is its table of contents, and no arrow.
    pub(super) fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = Vec::new();
        for (from, (_, paths)) in &self.0 {
            let is_path = |path: &&Path| path.text.contains("::") || !path.name.is_empty();
            for path in paths.iter().filter(is_path) {
                let to = self.absolute(from, &path.text, 0).map(|path| self.resolved(&path, 0));
                let is_content =
                    |to: &String| path.is_public && (from.is_empty() || to.starts_with(&format!("{from}::")));
                let to = to.filter(|to| to != from && !is_content(to));
                arrows.extend(to.map(|to| (from.clone(), to, path.text.clone())));
            }
        }
        arrows
    }
}
