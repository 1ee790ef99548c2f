//! The texts of the scripts, composed of the files in `lua/` as the client composes them. For what calls the scripts
//! without a client. That the client sends these very texts, is a test of `tests/attack` (`tests/scripts.rs`).

/// One script.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub name: &'static str,
    /// What follows `#!lua`.
    pub flags: &'static str,
    /// The names and the texts of its files, in their order.
    pub files: &'static [(&'static str, &'static str)],
    /// As servers before Redis 7 get it.
    pub text: &'static str,
}

impl Script {
    /// As servers get it from Redis 7 on.
    pub fn flagged(&self) -> String {
        format!("#!lua{}\n{}", self.flags, self.text)
    }
}

macro_rules! scripts {
    ($($constant:ident = $name:literal $flags:literal [$($file:literal),+];)+) => {
        $(pub const $constant: Script = Script {
            name: $name,
            flags: $flags,
            files: &[$(($file, include_str!(concat!("../../../lua/", $file)))),+],
            text: concat!($(include_str!(concat!("../../../lua/", $file))),+),
        };)+

        pub const ALL: &[Script] = &[$($constant),+];
    };
}

scripts! {
    ACQUIRE = "acquire" "" ["lock.lua", "acquire.lua"];
    RELEASE = "release" " flags=allow-oom" ["lock.lua", "release.lua"];
    RENEW = "renew" " flags=allow-oom" ["lock.lua", "renew.lua"];
    DOWNGRADE = "downgrade" " flags=allow-oom" ["lock.lua", "downgrade.lua"];
    EVICT = "evict" " flags=allow-oom" ["lock.lua", "evict.lua"];
    STATUS = "status" " flags=no-writes" ["lock.lua", "status.lua"];
    PLACE = "place" " flags=allow-oom" ["lock.lua", "place.lua"];
}

/// The library of functions: its name, and its text as `FUNCTION LOAD` takes it.
pub fn library() -> (String, String) {
    let lock = file("lock.lua");
    let own = |script: &Script| file(&format!("{}.lua", script.name));
    let texts: String = std::iter::once(lock).chain(ALL.iter().map(own)).collect();
    let name = format!("fairlock_{}", &redis::Script::new(&texts).get_hash()[..16]);
    let mut text = format!("#!lua name={name}\n{lock}");
    for script in ALL {
        let flags = match script.flags.strip_prefix(" flags=") {
            Some(flag) => format!("'{flag}'"),
            None => String::new(),
        };
        text += &format!(
            "redis.register_function{{function_name='{name}_{}',flags={{{flags}}},callback=function(KEYS, ARGV)\n{}end}}\n",
            script.name,
            own(script)
        );
    }
    (name, text)
}

/// The script of that name.
pub fn named(name: &str) -> &'static Script {
    let script = ALL.iter().find(|script| script.name == name);
    script.unwrap_or_else(|| panic!("there is no script {name:?}"))
}

/// The text of a file that is part of a script.
pub fn file(name: &str) -> &'static str {
    let mut files = ALL.iter().flat_map(|script| script.files);
    let file = files.find(|(file, _)| *file == name);
    file.unwrap_or_else(|| panic!("no script has a file {name:?}")).1
}
