//! What `tests/attack` needs to see and to replace; compiled only for it.

use std::sync::OnceLock;

type Transform = Box<dyn Fn(&str, &str) -> String + Send + Sync>;

static TRANSFORM: OnceLock<Transform> = OnceLock::new();

/// From now on every script of this process is what `transform` makes of its name and its text. Returns false if that
/// was set before. To be called before the first client connects: a script is made once.
pub fn transform_scripts(transform: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> bool {
    TRANSFORM.set(Box::new(transform)).is_ok()
}

pub(crate) fn transformed(name: &str, body: &str) -> String {
    TRANSFORM
        .get()
        .map_or_else(|| body.to_owned(), |transform| transform(name, body))
}

/// Every script as it is sent: its name, and its text for servers before Redis 7 and from then on.
pub fn scripts() -> [(&'static str, [&'static str; 2]); 6] {
    crate::script::all()
}
