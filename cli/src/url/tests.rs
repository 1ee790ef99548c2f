use super::*;

fn read(url: &str) -> Place {
    Place::read(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn addresses(place: &Place) -> Vec<String> {
    place.hosts.iter().map(|host| host.addr().to_string()).collect()
}

#[test]
fn a_cluster_is_the_hosts_between_commas_with_one_login() {
    let place = read("redis+cluster://app:s3cret%40@a:7000,b,[::1]:7002");
    assert_eq!(place.named, Named::Cluster);
    assert_eq!(addresses(&place), ["a:7000", "b:6379", "::1:7002"]);
    for host in &place.hosts {
        let settings = host.redis_settings();
        assert_eq!(
            (settings.username(), settings.password()),
            (Some("app"), Some("s3cret@"))
        );
    }
    assert_eq!(place.shown, "redis+cluster://app@a:7000,b,[::1]:7002");
    assert_eq!(place.at("c", 7003), "redis://app:s3cret%40@c:7003");
    assert_eq!(place.at("fe80::1", 7003), "redis://app:s3cret%40@[fe80::1]:7003");
    for url in ["redis+cluster://a", "REDIS+CLUSTER://a/", "valkey+cluster://a/0"] {
        assert_eq!(addresses(&read(url)), ["a:6379"], "{url}");
    }
}

#[test]
fn a_master_is_named_by_the_path_and_sentinels_have_a_login_of_their_own() {
    let place = read("redis+sentinel://app:s3cret@a,b:5000/my%20master+1/3");
    let master = Some("my master+1".to_owned());
    assert_eq!(place.named, Named::Sentinel { master });
    assert_eq!(addresses(&place), ["a:26379", "b:5000"]);
    let (master, sentinel) = (&place.settings, place.hosts[0].redis_settings());
    assert_eq!(
        (master.username(), master.password(), master.db()),
        (Some("app"), Some("s3cret"), 3)
    );
    assert_eq!(
        (sentinel.username(), sentinel.password(), sentinel.db()),
        (None, None, 0)
    );
    assert_eq!(place.shown, "redis+sentinel://app@a,b:5000/my%20master+1/3");
    assert_eq!(place.at("m", 1), "redis://app:s3cret@m:1/3");

    let place = read("redis+sentinel://:one@a/mine?sentinel_username=u&sentinel_password=t%26wo");
    let sentinel = place.hosts[0].redis_settings();
    assert_eq!((sentinel.username(), sentinel.password()), (Some("u"), Some("t&wo")));
    assert_eq!(place.shown, "redis+sentinel://a/mine");
    let place = read("redis+sentinel://a");
    assert_eq!(place.named, Named::Sentinel { master: None });
    for url in ["redis+sentinel://a", "redis+sentinel://a/other/1", "redis://:s3cret@a"] {
        assert_eq!(
            read(url).shown_with("my master"),
            "redis+sentinel://a/my%20master",
            "{url}"
        );
    }
}

#[test]
fn all_other_urls_are_read_by_the_redis_crate() {
    let place = read("redis://app:s3cret@a:1/3?protocol=resp3");
    assert_eq!(
        (&place.named, place.shown.as_str()),
        (&Named::Server, "redis://app@a:1/3")
    );
    assert_eq!(place.settings.db(), 3);
    assert_eq!(place.at("b", 2), "redis://app:s3cret@b:2");
    assert_eq!(read("unix:///tmp/redis.sock").named, Named::Server);
}

#[test]
fn an_option_or_a_fragment_that_has_no_meaning_is_refused() {
    for url in [
        "redis://a?db=1",
        "redis://a/1?password=s3cret",
        "valkey://a?protocol=resp3&timeout=1",
        "redis://app:6379?s3cret",
        "redis://app:6379#s3cret",
        "redis://a#insecure",
        "unix:///tmp/socket?database=1",
        "unix:///tmp/socket#s3cret",
        "redis+cluster://a,b?protocol=resp3",
        "redis+cluster://a,b#s3cret",
        "redis+sentinel://a/mine?db=s3cret",
        "redis+sentinel://a/mine#insecure",
        #[cfg(feature = "tls-rustls")]
        "rediss://a#s3cret",
        "rediss+cluster://a,b#s3cret",
    ] {
        let error = Place::read(url).expect_err(url).to_string();
        let is_told =
            ["unknown option or fragment", "/DATABASE", "%3F and # as %23"].map(|words| error.contains(words));
        assert!(is_told == [true; 3] && !error.contains("s3cret"), "{url}: {error}");
    }
    let place = read("unix:///tmp/socket?db=3&user=app&pass=p%40ss&protocol=resp3");
    let settings = &place.settings;
    assert_eq!(
        (settings.db(), settings.username(), settings.password()),
        (3, Some("app"), Some("p@ss"))
    );
    assert_eq!(place.shown, "unix:///tmp/socket?db=3");
    read("redis://a/?");
    read("redis://a#");
}

#[test]
fn a_user_without_a_password_has_a_colon_and_a_login_without_a_colon_may_be_a_password() {
    for scheme in ["redis", "redis+cluster", "redis+sentinel"] {
        let place = read(&format!("{scheme}://app:@a:1"));
        assert_eq!(place.settings.username(), Some("app"));
        assert_eq!(
            place.settings.password(),
            Some(""),
            "without one, the redis crate does not log in"
        );
        assert_eq!(
            place.hosts[0].redis_settings().password().is_some(),
            scheme != "redis+sentinel"
        );
        let place = read(&format!("{scheme}://:s3cret@a:1"));
        assert_eq!(
            (place.settings.username(), place.settings.password()),
            (None, Some("s3cret"))
        );
        assert_eq!(place.shown, format!("{scheme}://a:1"));
    }
    for url in [
        "redis://s3cret@a",
        "valkey://s3cret@a:1/3",
        "redis://s3cret%3Apart@a",
        "redis://s3cret@[::1]",
        "REDIS://s3cret@a",
        "redis:/\t/s3cret@a",
        "re\ndis://s3cret@a",
        "unix://s3cret@a/tmp/socket",
        "redis+cluster://s3cret@a,b",
        "redis+sentinel://s3cret@a,b/mine",
    ] {
        let error = Place::read(url).expect_err(url).to_string();
        assert!(!error.contains("s3cret"), "{url:?}: {error}");
        assert!(error.contains("USER:PASSWORD@ or :PASSWORD@"), "{url:?}: {error}");
    }
}

#[cfg(all(feature = "tls-rustls", feature = "sentinel"))]
#[test]
fn tls_is_for_all_hosts() {
    for url in ["rediss+cluster://a,b", "valkeys+sentinel://a,b/mine", "rediss://a"] {
        let place = read(url);
        assert!(place.is_tls() && !place.is_insecure(), "{url}");
        assert!(
            place
                .hosts
                .iter()
                .all(|host| matches!(host.addr(), redis::ConnectionAddr::TcpTls { .. }))
        );
        assert!(read(&format!("{url}#insecure")).is_insecure(), "{url}");
    }
    assert_eq!(
        read("rediss+sentinel://a/mine#insecure").at("b", 1),
        "rediss://b:1/0#insecure"
    );
}

#[test]
fn each_mistake_has_its_own_words_and_no_password() {
    for (url, words) in [
        ("s3cret@nonsense", "redis+cluster://"),
        ("http://s3cret@a", "redis+cluster://"),
        ("redis-sentinel://:s3cret@a?sentinelMasterId=m", "another program's"),
        ("sentinel://:s3cret@a", "redis+sentinel://HOST"),
        ("redis-cluster://:s3cret@a,b", "redis+cluster://HOST"),
        ("redis://:s3cret@a,b", "several hosts"),
        ("redis+cluster://:s3cret@a,:s3cret@b", "several @"),
        ("redis://app:6379#s3cret@a", "and # as %23"),
        ("redis://app:6379/s3cret@a", "/ is written as %2F"),
        ("redis://app:6379?s3cret@a", "? as %3F and"),
        ("redis+cluster://app:6379#s3cret@a", "and # as %23"),
        ("redis+sentinel://app:6379/s3cret@a/main", "/ is written as %2F"),
        ("redis+cluster://:s3cret@", "host is missing"),
        ("redis+cluster://:s3cret@a,,b", "host is missing"),
        ("redis+cluster://:s3cret@:7000", "host is missing"),
        ("redis+cluster://:s3cret@a/1", "database 0"),
        ("redis+cluster://:s3cret@a?s=s3cret", "unknown option"),
        ("redis+sentinel://app:12?s3cret@a/main", "%3F"),
        ("redis+sentinel://:s3cret@a/mine/x", "/MASTER/DATABASE"),
        ("redis+sentinel://:s3cret@a//1", "/MASTER/DATABASE"),
        ("redis+sentinel://:s3cret@a/mine/1/2", "/MASTER/DATABASE"),
        ("redis+sentinel://:s3cret@a/mine?db=s3cret", "unknown option"),
        ("redis+sentinel://:s3cret@a:port/mine", "write it like"),
    ] {
        let error = Place::read(url).expect_err(url).to_string();
        assert!(error.contains(words) && !error.contains("s3cret"), "{url}: {error}");
    }
}
