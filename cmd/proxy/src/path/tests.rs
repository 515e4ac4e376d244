//! Targets that are read, and those that are refused.

use proptest::prelude::*;

use super::*;

fn canonical(raw: &str) -> Result<String, TargetError> {
    Target::parse(raw).map(|target| target.to_canonical(|_| false))
}

#[test]
fn decodes_once_and_sends_what_was_decoded() {
    assert_eq!(
        canonical("/api/v1/namespaces/ns/pods/p/%65xec").unwrap(),
        "/api/v1/namespaces/ns/pods/p/exec"
    );
    assert_eq!(
        canonical("/a/b%20c%3fd%23e?x=%2F;").unwrap_err(),
        TargetError::Semicolon
    );
    assert_eq!(canonical("/a/b%20c%3fd%23e?x=%2F").unwrap(), "/a/b%20c%3Fd%23e?x=%2F");
    assert_eq!(canonical("/").unwrap(), "/");
    assert_eq!(canonical("/apis/").unwrap(), "/apis/");
    assert_eq!(canonical("/api?").unwrap(), "/api?");
}

#[test]
fn cases_1_2_3_15_refuse_what_two_readers_could_read_differently() {
    use TargetError::*;
    for (raw, error) in [
        ("/a/../b", DotSegment),
        ("/a/./b", DotSegment),
        ("/a/..", DotSegment),
        ("/a/%2e%2e/x", DotSegment),
        ("/a/.%2e/x", DotSegment),
        ("/a/%2E", DotSegment),
        ("/a/..;a/x", Separator),
        ("/a/exec;x", Separator),
        ("/a/exec%3bx", Separator),
        ("/a/p%2Fexec", Separator),
        ("/a/p%2fexec", Separator),
        ("/a/%5c..%5c", Separator),
        ("/a/x%00", Separator),
        ("/a/x%0a", Separator),
        ("/a/x%7f", Separator),
        ("/a/%2565xec", Separator),
        ("/a/%c3%a9", Separator),
        ("/a\\b", Byte),
        ("/\u{e9}", Byte),
        ("/a b", Byte),
        ("/a#b", Byte),
        ("/a[b]", Byte),
        ("/a\tb", Byte),
        ("/%zz", Encoding),
        ("/%", Encoding),
        ("/%6", Encoding),
        ("/a?x=%g0", Encoding),
        ("//a", EmptySegment),
        ("/a//b", EmptySegment),
        ("/a//", EmptySegment),
        ("//", EmptySegment),
        ("*", NotOriginForm),
        ("", NotOriginForm),
        ("https://other/x", NotOriginForm),
        ("h:443", NotOriginForm),
        ("/a?b;c=1", Semicolon),
        ("/a?b=\u{e9}", Byte),
        ("/a?b=\"", Byte),
        ("/a?b#c", Byte),
    ] {
        assert_eq!(canonical(raw), Err(error), "{raw:?}");
    }
}

#[test]
fn drops_parameters_by_their_decoded_name() {
    let target = Target::parse("/a?x=1&access%5Ftoken=s&y=&access_token&access_token=2").unwrap();
    assert_eq!(target.to_canonical(|name| name == "access_token"), "/a?x=1&y=");
    assert_eq!(
        Target::parse("/a?token=1")
            .unwrap()
            .to_canonical(|name| name == "token"),
        "/a"
    );
}

#[test]
fn drops_parameters_of_public_servers_however_they_are_parted() {
    for (raw, sent) in [
        ("/a?x=1;token=s&y", "/a?x=1&y"),
        ("/a?x=1;t%6Fken=s;y=2", "/a?x=1;y=2"),
        ("/a?token=s;x=1", "/a"),
        ("/a?token;x=1", "/a?x=1"),
        ("/a?token=s;token=t&x", "/a?x"),
        ("/a;token=s?;&;=;", "/a;token=s?;&;=;"),
        ("/a?", "/a?"),
        // A percent sign that encodes nothing stands for itself: these are other names.
        ("/a?token%=s&%zztoken&token%6&%", "/a?token%=s&%zztoken&token%6&%"),
    ] {
        let found = raw_target_without_parameters(raw, |name| name == "token").unwrap();
        assert_eq!(found, sent, "{raw}");
    }
}

#[test]
fn public_servers_get_no_byte_that_no_target_has() {
    for (raw, error) in [
        ("*", TargetError::NotOriginForm),
        ("https://other/x", TargetError::NotOriginForm),
        ("/a b", TargetError::Byte),
        ("/a\tb", TargetError::Byte),
        ("/a\0", TargetError::Byte),
        ("/a\u{7f}", TargetError::Byte),
        ("/\u{e9}", TargetError::Byte),
        ("/a#b", TargetError::Byte),
    ] {
        assert_eq!(raw_target_without_parameters(raw, |_| false), Err(error), "{raw:?}");
    }
    let raw = "/a//../%2e;%zz\\[\"]?b=^|;";
    assert_eq!(raw_target_without_parameters(raw, |_| false).as_deref(), Ok(raw));
}

#[test]
fn a_target_has_a_longest_length() {
    let longest = format!("/{}", "a".repeat(MAX_TARGET - 1));
    let beyond = format!("{longest}a");
    assert_eq!(canonical(&longest).as_deref(), Ok(longest.as_str()));
    assert_eq!(canonical(&beyond), Err(TargetError::TooLong));
    let forwarded = |raw: &str| raw_target_without_parameters(raw, |_| false);
    assert_eq!(forwarded(&longest).as_deref(), Ok(longest.as_str()));
    assert_eq!(forwarded(&beyond), Err(TargetError::TooLong));
    assert_eq!((TargetError::TooLong.status(), TargetError::Byte.status()), (414, 400));
}

#[test]
fn reads_parameters_as_go_does() {
    let target = Target::parse("/a?watch=&watch=1&w%61tch=a%20b+c&watchx=3").unwrap();
    assert_eq!(target.parameter("watch").collect::<Vec<_>>(), ["", "1", "a b c"]);
    assert_eq!(
        Target::parse("/a?watch")
            .unwrap()
            .parameter("watch")
            .collect::<Vec<_>>(),
        [""]
    );
    assert_eq!(Target::parse("/a").unwrap().parameter("").count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn accepted_means_a_canonical_form_that_parses_to_itself(
        raw in "/(\\PC{0,6}|[a-z%.;/]{0,8}|%[0-9a-f]{2}|/|\\.|%2[eEfF]|api|[a-z ?&=+]{1,8}){0,8}(\\?\\PC{0,12})?"
    ) {
        if let Ok(target) = Target::parse(&raw) {
            let sent = target.to_canonical(|_| false);
            prop_assert_eq!(Target::parse(&sent).unwrap(), target.clone());
            prop_assert_eq!(Target::parse(&sent).unwrap().to_canonical(|_| false), sent.clone());
            let path = sent.split('?').next().unwrap();
            prop_assert!(sent.is_ascii() && !path.contains("//") && !sent.contains('\\'));
            for segment in target.segments() {
                prop_assert!(!segment.contains('/') && segment != "." && segment != ".." && !segment.is_empty());
            }
        }
    }
}
