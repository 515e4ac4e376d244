//! What becomes of a connection after an exchange.

use super::*;
use crate::memory;

#[test]
fn a_cut_answer_is_never_ended_orderly_and_none_is_answered_by_the_proxy() {
    use ExchangeError::*;
    let go = |status, next| After::Go { status, next };
    for (error, answered, reusable, expected) in [
        (None, 200, true, go(200, Next::Continue)),
        (None, 200, false, go(200, Next::Close)),
        (Some(Truncated), 200, false, go(200, Next::Abort)),
        (Some(ClientAhead), 200, false, go(200, Next::Abort)),
        (Some(ClientGone), 0, false, go(0, Next::Abort)),
        (Some(ClientTimeout), 200, false, go(200, Next::Abort)),
        (Some(OverBudget(memory::OverBudget)), 200, false, go(200, Next::Cut)),
        (
            Some(OverBudget(memory::OverBudget)),
            0,
            false,
            After::Refuse {
                status: 503,
                close: true,
            },
        ),
        (
            Some(ClientAhead),
            0,
            false,
            After::Refuse {
                status: 400,
                close: true,
            },
        ),
        (
            Some(ClientMalformed),
            0,
            false,
            After::Refuse {
                status: 400,
                close: true,
            },
        ),
        (
            Some(Timeout),
            0,
            false,
            After::Refuse {
                status: 504,
                close: false,
            },
        ),
        (
            Some(NoResponse),
            0,
            false,
            After::Refuse {
                status: 502,
                close: false,
            },
        ),
        (
            Some(Interim),
            0,
            false,
            After::Refuse {
                status: 502,
                close: false,
            },
        ),
    ] {
        assert_eq!(after(error, answered, reusable), expected, "{error:?} {answered}");
    }
}
