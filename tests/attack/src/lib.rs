//! What tries to break fairlock, and stays so that every later change meets it. `attack --help` lists the commands.

pub mod checker;
pub mod explore;
pub mod invariants;
pub mod journal;
pub mod lua_world;
pub mod model;
pub mod model_check;
pub mod mutants;
#[cfg(test)]
mod parse;
pub mod record;
pub mod simulation;
pub mod torture;
#[cfg(test)]
mod wild;

/// Real servers, and a proxy before them: the harness of the other tests.
#[path = "../../it/server.rs"]
#[allow(dead_code)]
pub mod server;
