//! Two versions of fairlock on one server: the functions of both lie side by side, and the lock is one.

use super::{cycle, executed, has_functions, lock, run};
use crate::lua::Lock;
use crate::server::{Server, soon};
use fairlock_support::scripts;
use redis::Value;

/// The library of another version, whose scripts do the same.
fn of_another_version() -> (String, String) {
    let (name, text) = scripts::library();
    let other = format!("fairlock_{}", "0123456789abcdef");
    assert_ne!(name, other);
    (other.clone(), text.replace(&name, &other))
}

#[tokio::test]
async fn clients_of_two_versions_share_a_queue_and_neither_replaces_the_others_functions() {
    let server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    let (other, text) = of_another_version();
    run(&server, &["FUNCTION", "LOAD", &text]).await;
    let lock = lock(server.url()).await;
    let raw = Lock::new(&server, "a").await;
    let call = async |script: &str, args: &[&str]| -> Value {
        let name = format!("{other}_{script}");
        let keys = raw.keys.each_ref().map(String::as_str);
        let words = [&["FCALL", &name, "3"][..], &keys, &[""], args].concat();
        run(&server, &words).await
    };
    let held = lock.write().acquire_fair().await.unwrap();
    let Value::Array(queued) = call("acquire", &["w1:1", "600000"]).await else {
        panic!("it does not wait");
    };
    assert_eq!(queued[0], Value::Int(1));
    let waiting = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 2).await;
    held.release().await.unwrap();
    assert_eq!(raw.state().await.holding(), ["w1:1"]);
    let Value::Int(told) = call("release", &["w1:1"]).await else {
        panic!("not one number");
    };
    let next = soon("the hand-over", waiting).await.unwrap().unwrap();
    assert!(next.fencing_token().get() > told.unsigned_abs());
    next.release().await.unwrap();
    let (_, by_text) = executed(&server).await;
    cycle(&lock).await;
    assert_eq!(executed(&server).await.1, by_text, "our functions are still there");
}
