//! The rules of SECURITY.md for a user of a quorum.

use super::{Fleet, PREFIX};
use crate::acl::{breaks, login, refused, rights_for, rules};
use crate::server::soon;
use fairlock::Error;
use futures::future::join_all;

async fn serve(fleet: &Fleet, user: &str, rules: &[String]) -> Result<(), Error> {
    let urls = join_all(fleet.0.iter().map(|server| login(server, user, rules))).await;
    let quorum = Fleet::builder().connect(urls).await?;
    let lock = quorum.rw_lock(user);
    let writing = lock.write().acquire_fair().await?;
    let waiting = tokio::spawn(lock.read().acquire_fair());
    fleet.until(fleet.all(), user, 1, 1).await;
    writing.fencing_token().await?;
    let status = lock.status().await?;
    assert_eq!((status.holders.len(), status.waiting), (1, 1));
    writing.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    quorum.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_user_of_a_quorum_needs_the_rules_that_the_page_names_for_it() {
    let fleet = Fleet::start(3).await;
    let rights = rights_for("Quorum");
    assert!(!rights.is_empty());
    let service = rules("service").into_iter();
    let service = service.map(|rule| rule.replace("fairlock:", &format!("{PREFIX}:")));
    let all: Vec<_> = service.chain(rights.clone()).collect();
    soon("a service", serve(&fleet, "service", &all))
        .await
        .expect("all rights");
    for server in &fleet.0 {
        assert_eq!(refused(server, "service").await, [""; 0]);
    }
    for right in &rights {
        let rest: Vec<_> = all.iter().filter(|rule| *rule != right).cloned().collect();
        let user = format!("service-{}", &right[1..]);
        let broken = breaks(&fleet.0[0], &user, serve(&fleet, &user, &rest)).await;
        assert!(broken, "a quorum does not need {right}");
    }
}
