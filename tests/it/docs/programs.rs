//! What the guide `programs` shows and cannot compile itself, because fairlock does not depend on axum.

use std::fs::read_to_string;
use std::path::Path;

#[test]
fn the_web_service_of_the_guide_is_the_one_that_is_compiled() {
    let read = |name: &str| read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect(name);
    let (page, program) = (read("docs/programs.md"), read("examples/services/src/bin/state.rs"));
    let shown = page
        .split("```rust,ignore\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    // rustfmt breaks lines elsewhere.
    let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
    let shown = without_spaces(shown.expect("the web service"));
    assert!(
        shown.len() > 500 && without_spaces(&program).contains(&shown),
        "docs/programs.md is not state.rs"
    );
    // Everything else is compiled by rustdoc.
    assert_eq!(page.matches("```rust,ignore").count(), 1);
}
