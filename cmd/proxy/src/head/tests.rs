//! Heads that are read, and those that are refused.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Head, HeadError> {
    let end = find_end(text.as_bytes(), 0)?.expect("complete");
    Head::parse(text.as_bytes().get(..end).unwrap().to_vec())
}

fn request(text: &str) -> Result<(String, String, Framing), HeadError> {
    let head = parse(text)?;
    let (method, target) = head.request_line()?;
    Ok((method.to_owned(), target.to_owned(), head.request_framing()?))
}

#[test]
fn reads_plain_requests() {
    assert_eq!(
        request("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap(),
        ("GET".into(), "/a".into(), Framing::Empty)
    );
    let head = parse("POST / HTTP/1.1\r\nHost:h\r\nX:\t a b \t\r\nEmpty:\r\ncontent-length: 3\r\n\r\nabc").unwrap();
    assert_eq!(head.request_framing(), Ok(Framing::Length(3)));
    assert_eq!(head.values("x").collect::<Vec<_>>(), [b"a b"]);
    assert_eq!(head.values("EMPTY").collect::<Vec<_>>(), [b""]);
}

#[test]
fn cases_43_44_refuse_what_two_parsers_could_read_differently() {
    use HeadError::*;
    for (text, error) in [
        ("GET / HTTP/1.1\nHost: h\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: h\n\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\x0bb\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\x7fb\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\r\tb\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\r\t\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", Field),
        ("GET / HTTP/1.1\r\n X: a\r\n\r\n", Field),
        ("GET / HTTP/1.1\r\nX : a\r\n\r\n", Field),
        ("GET / HTTP/1.1\r\n: a\r\n\r\n", Field),
        ("GET / HTTP/1.1\r\nX\r\n\r\n", Field),
        ("GET / HTTP/1.1\r\nX\u{e9}: a\r\n\r\n", Field),
        ("GET  / HTTP/1.1\r\n\r\n", StartLine),
        ("GET / HTTP/1.1 \r\n\r\n", StartLine),
        (" GET / HTTP/1.1\r\n\r\n", StartLine),
        ("GET\t/\tHTTP/1.1\r\n\r\n", StartLine),
        ("GET /\r\n\r\n", StartLine),
        ("G\u{e9}T / HTTP/1.1\r\n\r\n", StartLine),
        ("\r\nGET / HTTP/1.1\r\n\r\n", StartLine),
        ("GET / HTTP/1.0\r\n\r\n", Version),
        ("GET / HTTP/2.0\r\n\r\n", Version),
        ("GET / http/1.1\r\n\r\n", StartLine),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Framing,
        ),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            Framing,
        ),
        ("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", Framing),
        (
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            Framing,
        ),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Framing),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
            Framing,
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            Framing,
        ),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Framing),
        ("POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n", Control),
    ] {
        assert_eq!(request(text).unwrap_err(), error, "{text:?}");
    }
}

#[test]
fn names_with_ending_tricks_are_other_names() {
    let head = parse("POST / HTTP/1.1\r\nContent_Length: 5\r\nX-Content-Length: 6\r\n\r\n").unwrap();
    assert_eq!(head.request_framing(), Ok(Framing::Empty));
}

#[test]
fn responses() {
    let framing = |text: &str, method: &str| {
        let head = parse(text).unwrap();
        let (_, status) = head.status_line().unwrap();
        head.response_framing(method, status)
    };
    assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n", "GET"), Ok(Framing::UntilClose));
    assert_eq!(
        framing("HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", "GET"),
        Ok(Framing::Length(5))
    );
    assert_eq!(
        framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD"),
        Ok(Framing::Empty)
    );
    assert_eq!(framing("HTTP/1.1 204 No Content\r\n\r\n", "GET"), Ok(Framing::Empty));
    assert_eq!(
        framing("HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", "GET"),
        Ok(Framing::Empty)
    );
    assert!(
        framing(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET"
        )
        .is_err()
    );
    for text in [
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000\r\n\r\n",
        "HTTP/1.1 600 x\r\n\r\n",
    ] {
        assert!(parse(text).unwrap().status_line().is_err(), "{text}");
    }
}

#[test]
fn no_value_has_a_control_character_but_the_tab_whoever_delimited_the_head() {
    let value = |text: &str| {
        let head = Head::parse(format!("GET / HTTP/1.1\r\nX: {text}\r\n\r\n").into_bytes())?;
        Ok(head.values("x").next().map(<[u8]>::to_vec))
    };
    assert_eq!(value("a\tb"), Ok(Some(b"a\tb".to_vec())));
    for text in ["a\rb", "a\r", "\ra", "a\nb", "a\0b", "\x7f"] {
        assert_eq!(value(text), Err(HeadError::Control), "{text:?}");
    }
}

#[test]
fn a_head_has_a_longest_length_and_a_largest_number_of_fields() {
    let of_length = |length: usize| {
        let frame = "GET / HTTP/1.1\r\nX: \r\n\r\n";
        find_end(
            frame
                .replace("X: ", &format!("X: {}", "x".repeat(length - frame.len())))
                .as_bytes(),
            0,
        )
    };
    assert_eq!(of_length(MAX_HEAD), Ok(Some(MAX_HEAD)));
    assert_eq!(of_length(MAX_HEAD + 1), Err(HeadError::TooLarge));
    assert_eq!(find_end(&[b'x'; MAX_HEAD], 0), Err(HeadError::TooLarge));
    assert_eq!(find_end(&[b'x'; MAX_HEAD - 1], 0), Ok(None));

    let of_fields = |count: usize| parse(&format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(count)));
    assert_eq!(of_fields(MAX_FIELDS).map(|head| head.fields().count()), Ok(MAX_FIELDS));
    assert_eq!(of_fields(MAX_FIELDS + 1).err(), Some(HeadError::TooLarge));
}

#[test]
fn connection_names_a_few_fields_and_not_thousands() {
    let members = |count: usize| {
        parse(&format!(
            "GET / HTTP/1.1\r\nConnection: {}\r\n\r\n",
            vec!["x"; count].join(",")
        ))
    };
    assert!(members(32).is_ok());
    assert_eq!(members(33).err(), Some(HeadError::TooLarge));
    let lines = "Connection: x\r\n".repeat(33);
    assert_eq!(
        parse(&format!("GET / HTTP/1.1\r\n{lines}\r\n")).err(),
        Some(HeadError::TooLarge)
    );
}

proptest! {
    #[test]
    fn the_end_is_found_however_the_bytes_arrive(text in "[a\r\n\t: ]{0,24}(\r\n\r\n)?", cut in 0_usize..28) {
        let bytes = text.as_bytes();
        let cut = cut.min(bytes.len());
        let whole = find_end(bytes, 0);
        let first = find_end(bytes.get(..cut).unwrap(), 0);
        let stepwise = match first {
            Ok(None) => find_end(bytes, cut),
            other => other,
        };
        prop_assert_eq!(whole, stepwise);
    }
}
