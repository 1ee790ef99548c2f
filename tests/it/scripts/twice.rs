//! Every script may be sent twice.

use super::walk;
use crate::lua::Lock;
use crate::server::Server;

#[tokio::test]
async fn sending_everything_three_times_has_the_effect_of_sending_it_once() {
    let server = Server::start().await;
    let once = walk(&Lock::new(&server, "once").await, 1).await;
    let thrice = walk(&Lock::new(&server, "thrice").await, 3).await;
    assert_eq!(once, thrice);
}
