//! In a process of its own: others here change what the client sends.

use fairlock_attack::lua_world::Scripts;
use fairlock_attack::record::Script;

#[test]
fn the_scripts_compared_with_the_model_are_those_that_the_client_sends() {
    let sent = fairlock::testing::scripts();
    for script in Script::ALL {
        let (_, [plain, flagged]) = sent
            .iter()
            .find(|(name, _)| *name == script.name())
            .expect("a script of that name");
        let whole = Scripts::real().whole(script);
        assert_eq!(whole, *plain);
        assert!(flagged.ends_with(&whole));
    }
}
