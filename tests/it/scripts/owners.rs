//! Owners that nest, upgrade, wait and are evicted.

use super::lock;
use crate::lua::writes;

#[tokio::test]
async fn an_owner_may_nest_any_modes_and_leave_in_any_order() {
    let (_server, lock) = lock().await;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for modes in ["rrr", "rrw", "rwr", "rww", "wrr", "wrw", "wwr", "www"] {
        for order in orders {
            let requests: Vec<_> = modes
                .chars()
                .enumerate()
                .map(|(n, mode)| format!("{mode}1:{n}:me"))
                .collect();
            let mut last = 0;
            for (n, request) in requests.iter().enumerate() {
                // A second one waits from the beginning: reentry passes it.
                if n == 1 {
                    lock.acquire("w2:1").await.ticket();
                }
                let token = lock.acquire(request).await.token();
                let upgrades = n > 0 && writes(request) && requests[..n].iter().all(|r| !writes(r));
                assert!(
                    n == 0 || (token == last) != upgrades && token >= last,
                    "{modes}: {token} after {last}"
                );
                last = token;
            }
            for (left, n) in order.into_iter().enumerate() {
                assert_eq!(lock.state().await.waiting(), ["w2:1"], "{modes} {order:?} {left}");
                assert_eq!(lock.release(&[&requests[n]]).await.1, [2]);
            }
            assert_eq!(lock.state().await.holding(), ["w2:1"]);
            lock.release(&["w2:1"]).await;
        }
    }
}
