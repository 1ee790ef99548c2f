//! A scanner of Rust sources that is good enough for the rules of the floors: it finds tokens, imports and the items that
//! only tests have. It knows no types and expands no macros.
//!
//! The source is first made blank where it is a comment or a literal, at equal offsets. What is left is a list of tokens with
//! their lines, and everything else is a walk over that list.

/// A word, `::`, or a single sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub text: String,
    pub line: usize,
}

/// A path as the source writes it, first segment first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub segments: Vec<String>,
    pub line: usize,
    /// The names of the inline modules around it.
    pub inside: Vec<String>,
    /// `None`: a path in code. Otherwise an import.
    pub import: Option<Import>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The name that it brings into scope; `*` for all.
    pub name: String,
    pub is_public: bool,
}

/// What a file has, but for comments and literals.
#[derive(Debug)]
pub(super) struct Scan {
    pub paths: Vec<Path>,
    /// Without the items that only tests have.
    pub tokens: Vec<Token>,
    /// Modules in files of their own, and whether only tests have them.
    pub modules: Vec<(String, bool)>,
    /// String literals with the two tokens before each, and the line.
    pub literals: Vec<([String; 2], String, usize)>,
}

pub(super) fn scan(source: &str) -> Scan {
    let (code, literals) = blank(source);
    let all = tokens(&code);
    let (tokens, modules) = without_tests(&all);
    Scan {
        paths: paths(&all),
        literals: literals
            .into_iter()
            .map(|(before, text)| {
                let told = self::tokens(&code[..before]);
                let word = |back: usize| {
                    let token = told.len().checked_sub(back).map(|at| told[at].text.clone());
                    token.unwrap_or_default()
                };
                ([word(2), word(1)], text, 1 + code[..before].matches('\n').count())
            })
            .collect(),
        tokens,
        modules,
    }
}

/// The source without comments and literals, and each string literal with its offset.
fn blank(source: &str) -> (String, Vec<(usize, String)>) {
    let bytes = source.as_bytes();
    let (mut code, mut literals, mut at) = (bytes.to_vec(), Vec::new(), 0);
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if source[at..].starts_with("//") => line_end(source, at),
            b'/' if source[at..].starts_with("/*") => comment_end(bytes, at),
            b'"' => {
                let end = string_end(bytes, at);
                literals.push((at, source[at + 1..end - 1].to_owned()));
                end
            }
            b'r' if !is_word_before(bytes, at) && raw_hashes(bytes, at).is_some() => {
                let end = raw_end(source, at, raw_hashes(bytes, at).unwrap_or(0));
                literals.push((at, source[at..end].to_owned()));
                end
            }
            b'\'' => char_end(source, at),
            byte if byte.is_ascii() => {
                at += 1;
                continue;
            }
            _ => at + 1,
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    (String::from_utf8(code).expect("what is not blank is ASCII"), literals)
}

fn line_end(source: &str, at: usize) -> usize {
    source[at..].find('\n').map_or(source.len(), |length| at + length)
}

fn comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A `b` or `c` before the `r` belongs to the literal.
fn is_word_before(bytes: &[u8], at: usize) -> bool {
    match at.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b' | b'c') => at >= 2 && is_word(bytes[at - 2]),
        Some(before) => is_word(before),
        None => false,
    }
}

/// How many `#` a raw string has that begins here.
fn raw_hashes(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    (bytes.get(at + 1 + hashes) == Some(&b'"')).then_some(hashes)
}

fn raw_end(source: &str, at: usize, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    let body = at + hashes + 2;
    source[body..]
        .find(&end)
        .map_or(source.len(), |length| body + length + end.len())
}

/// The end of a character, or of the sign of a lifetime.
fn char_end(source: &str, at: usize) -> usize {
    let mut rest = source[at + 1..].char_indices();
    match rest.next() {
        Some((_, '\\')) => {
            rest.next();
            let close = rest.find(|(_, sign)| *sign == '\'');
            close.map_or(source.len(), |(length, _)| at + 1 + length + 1)
        }
        Some(_) => match rest.next() {
            Some((length, '\'')) => at + 1 + length + 1,
            _ => at + 1,
        },
        None => at + 1,
    }
}

pub(super) fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let word = rest.bytes().take_while(|byte| is_word(*byte)).count();
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                1
            };
            tokens.push(Token {
                text: rest[..length].to_owned(),
                line: number + 1,
            });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

/// Where the brackets that open at `at` are closed: the index after.
fn closed(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The end of an item: a `;`, or the end of its first `{}`.
fn item_end(tokens: &[Token], from: usize) -> usize {
    let mut at = from;
    while at < tokens.len() {
        match text(tokens, at) {
            ";" | "," => return at + 1,
            "{" => return closed(tokens, at),
            "(" | "[" => at = closed(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Whether an attribute is a `cfg` that only tests meet: `test`, alone or within `all`.
fn is_of_tests(attribute: &[Token]) -> bool {
    let mut around = Vec::new();
    for (at, token) in attribute.iter().enumerate() {
        match token.text.as_str() {
            "(" => around.push(text(attribute, at.wrapping_sub(1))),
            ")" => _ = around.pop(),
            "test" if around.first() == Some(&"cfg") && around[1..].iter().all(|name| *name == "all") => return true,
            _ => {}
        }
    }
    false
}

fn without_tests(all: &[Token]) -> (Vec<Token>, Vec<(String, bool)>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < all.len() {
        if text(all, at) == "#" && text(all, at + 1) == "[" {
            let mut end = closed(all, at + 1);
            if is_of_tests(&all[at..end]) {
                while text(all, end) == "#" {
                    end = closed(all, end + 1);
                }
                let item = item_end(all, end);
                modules.extend(declared(&all[end..item], true));
                at = item;
                continue;
            }
        }
        if text(all, at) == "mod" {
            modules.extend(declared(&all[at..], false));
        }
        kept.push(all[at].clone());
        at += 1;
    }
    (kept, modules)
}

/// The name of the module in a file of its own that the first tokens declare.
fn declared(tokens: &[Token], of_tests: bool) -> Option<(String, bool)> {
    let at = tokens.iter().take(5).position(|token| token.text == "mod")?;
    (text(tokens, at + 2) == ";").then(|| (text(tokens, at + 1).to_owned(), of_tests))
}

/// All imports, groups taken apart, and all paths in code that have more than one segment.
fn paths(tokens: &[Token]) -> Vec<Path> {
    let (mut found, mut inside, mut depth, mut at) = (Vec::new(), Vec::<(String, usize)>::new(), 0_usize, 0);
    while at < tokens.len() {
        let names = || inside.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        match text(tokens, at) {
            "mod" if text(tokens, at + 2) == "{" => {
                inside.push((text(tokens, at + 1).to_owned(), depth));
                at += 2;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inside.last().is_some_and(|(_, outside)| *outside == depth) {
                    inside.pop();
                }
            }
            // Not the `use<'a>` of an opaque type.
            "use" if text(tokens, at + 1) != "<" => {
                let is_public = matches!(text(tokens, at.wrapping_sub(1)), "pub" | ")");
                let names = names();
                at = tree(tokens, at + 1, &[], &mut |segments, name, line| {
                    found.push(Path {
                        segments,
                        line,
                        inside: names.clone(),
                        import: Some(Import { name, is_public }),
                    });
                });
                continue;
            }
            _ => {
                let (segments, end) = segments(tokens, at);
                if segments.len() > 1 && !matches!(text(tokens, at.wrapping_sub(1)), "::" | "in") {
                    found.push(Path {
                        segments,
                        line: tokens[at].line,
                        inside: names(),
                        import: None,
                    });
                    at = end;
                    continue;
                }
            }
        }
        at += 1;
    }
    found
}

fn is_name(text: &str) -> bool {
    text.bytes()
        .next()
        .is_some_and(|first| is_word(first) && !first.is_ascii_digit())
}

/// `a::b::c`, and the index after it.
fn segments(tokens: &[Token], from: usize) -> (Vec<String>, usize) {
    let (mut segments, mut at) = (Vec::new(), from);
    while is_name(text(tokens, at)) {
        segments.push(text(tokens, at).to_owned());
        at += 1;
        if text(tokens, at) != "::" || !is_name(text(tokens, at + 1)) {
            break;
        }
        at += 1;
    }
    (segments, at)
}

/// Takes a tree of imports apart. Returns the index after it.
fn tree(tokens: &[Token], from: usize, before: &[String], found: &mut dyn FnMut(Vec<String>, String, usize)) -> usize {
    let mut at = from;
    let mut path = before.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    loop {
        match text(tokens, at) {
            "{" => {
                at += 1;
                while !matches!(text(tokens, at), "}" | "") {
                    at = tree(tokens, at, &path, found);
                    if text(tokens, at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {
                found(path, "*".to_owned(), line);
                return at + 1;
            }
            "as" => {
                found(path, text(tokens, at + 1).to_owned(), line);
                return at + 2;
            }
            "::" => {
                // `::name` is a crate.
                if path.is_empty() {
                    path.push(String::new());
                }
                at += 1;
            }
            name if is_name(name) => {
                // `a::{self}` is `a`.
                if name != "self" || path.is_empty() {
                    path.push(name.to_owned());
                }
                at += 1;
            }
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                found(path, name, line);
                return at;
            }
        }
    }
}

#[test]
fn comments_and_literals_are_no_code() {
    let (code, literals) = blank("a /* b /* c */ \" */ \"d\\\"\" // e\nr#\"f\"g\"# '\\'' 'h' 'i i: &'j J 'é' k");
    assert_eq!(
        code.split_whitespace().collect::<Vec<_>>(),
        ["a", "i", "i:", "&", "j", "J", "k"]
    );
    let literals: Vec<_> = literals.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(literals, ["d\\\"", "r#\"f\"g\"#"]);
}

#[test]
fn groups_of_imports_are_taken_apart() {
    let scan =
        scan("pub(crate) use a::{b::{self, c as d}, e::*};\nmod m { use super::f; }\nfn g() { crate::h::i(); x.j() }");
    let told: Vec<_> = scan
        .paths
        .iter()
        .map(|path| {
            let import = path.import.as_ref();
            let name = import.map_or("", |import| import.name.as_str());
            (path.segments.join("::"), name, path.line, path.inside.join("::"))
        })
        .collect();
    let expected = [
        ("a::b", "b", 1, ""),
        ("a::b::c", "d", 1, ""),
        ("a::e", "*", 1, ""),
        ("super::f", "f", 2, "m"),
        ("crate::h::i", "", 3, ""),
    ];
    assert_eq!(
        told,
        expected.map(|(path, name, line, inside)| (path.to_owned(), name, line, inside.to_owned()))
    );
}

#[test]
fn items_of_tests_are_left_out() {
    let scan = scan(
        "a; #[cfg(test)] mod tests { b } #[cfg(all(test, not(loom)))] #[path] mod c; #[cfg(not(test))] d; #[cfg(any(test, x))] d; #[cfg(test)] mod e; mod f;",
    );
    let words: Vec<_> = scan.tokens.iter().map(|token| token.text.as_str()).collect();
    assert!(!words.contains(&"b") && !words.contains(&"c"), "{words:?}");
    assert!(words.contains(&"d") && words.contains(&"f"), "{words:?}");
    let modules: Vec<_> = scan
        .modules
        .iter()
        .map(|(name, tests)| (name.as_str(), *tests))
        .collect();
    assert_eq!(modules, [("c", true), ("e", true), ("f", false)]);
}

#[test]
fn literals_know_what_stands_before_them() {
    let scan = scan("cmd.arg(\"EVAL\");\nredis::cmd(\"GET\")");
    let told: Vec<_> = scan
        .literals
        .iter()
        .map(|([first, second], text, line)| (first.as_str(), second.as_str(), text.as_str(), *line))
        .collect();
    assert_eq!(told, [("arg", "(", "EVAL", 1), ("cmd", "(", "GET", 2)]);
}
