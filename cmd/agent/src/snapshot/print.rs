//! The script by which a bash prints its state, each piece ended by NUL.

/// Runs after [`crate::script::snapshot`] has made it safe to: in POSIX mode, where no function stands in for a special
/// builtin, and without a function `unset`. It leaves that mode at once, since a bash from 5.3 on ends there at a function that
/// cannot be taken away. Aliases go first, since they could be called like the keywords that follow.
///
/// A bash whose parser has gone wrong (see [`crate::script::resync`]) has spoilt the memory that holds the quotes which are
/// open: a subshell of it aborts when it has to make room for more of them, so at last it reads a word with many.
///
/// A shell that ends inside a function still has its local variables, which are no state. In a subshell each variable is
/// declared globally, so that there is one to be seen below the local ones, and then taken away from within another
/// function, where that uncovers the next, until none is left: it hid as many as were seen, less one. Most hide none, and a
/// look at each takes long: only what is left after each was taken away once is counted. `FUNCNEST`, which may forbid that
/// function, is lifted meanwhile, and looked at last; where it cannot be, the state is left without its end.
///
/// Any list of its variables takes bash a time that grows with their square. So there is one alone, with their values, and of
/// those without a value the attributes. In it `SECONDS` has a value only after a look at it.
///
/// What comes after the list of functions may take functions away that are called like the builtins it needs.
pub const PRINT_STATE: &str = r#"\unset POSIXLY_CORRECT
\unset -f shopt; \shopt -u expand_aliases localvar_unset
\unset -f declare compgen alias ulimit umask local
CLI_MCP_E= CLI_MCP_I=
if \local CLI_MCP_Z; then
CLI_MCP_E=x CLI_MCP_I=x CLI_MCP_M=${FUNCNEST-}; [[ ${FUNCNEST+x} ]] && FUNCNEST=0
CLI_MCP_E=
CLI_MCP_O() { [[ $1 == CLI_MCP_* || $1 == IFS || $1 == FUNCNEST || ${1//[a-zA-Z0-9_]/} ]]; }
CLI_MCP_G() { if [[ -R $1 ]]; then \declare -gn "$1"; else case ${!1@a} in *a*) \declare -ga "$1";; *A*) \declare -gA "$1";; *) \declare -g "$1";; esac; fi; }
CLI_MCP_P() { if [[ -R $1 ]]; then \unset -n -- "$1"; else \unset -v -- "$1"; fi; }
CLI_MCP_L() {
for CLI_MCP_N in $(\compgen -v); do CLI_MCP_O "$CLI_MCP_N" || { CLI_MCP_G "$CLI_MCP_N"; CLI_MCP_P "$CLI_MCP_N"; }; done
CLI_MCP_C=
for CLI_MCP_N in $(\declare -p); do
[[ $CLI_MCP_C != declare\ -* ]] || \printf '%s\n' "${CLI_MCP_N%%=*}"
if [[ $CLI_MCP_N == -* ]]; then CLI_MCP_C="${CLI_MCP_C##* } $CLI_MCP_N"; else CLI_MCP_C=$CLI_MCP_N; fi
done
}
CLI_MCP_T() {
CLI_MCP_C=-1; CLI_MCP_G "$1"
while \declare -p "$1" >/dev/null && [[ $CLI_MCP_C != 40 ]]; do CLI_MCP_P "$1"; CLI_MCP_C=$((CLI_MCP_C+1)); done
[[ $CLI_MCP_C -lt 1 || $CLI_MCP_C == 40 ]] || \printf '%s:%s;' "$1" "$CLI_MCP_C"
}
CLI_MCP_Q=$(CLI_MCP_T IFS; IFS=$' \t\n'; \set -f
for CLI_MCP_N in $(CLI_MCP_L); do CLI_MCP_O "$CLI_MCP_N" || CLI_MCP_T "$CLI_MCP_N"; done
\declare -g FUNCNEST=0; CLI_MCP_T FUNCNEST)
while [[ $CLI_MCP_Q == *\;* ]]; do
CLI_MCP_N=${CLI_MCP_Q%%:*} CLI_MCP_Q=${CLI_MCP_Q#*:}; CLI_MCP_C=${CLI_MCP_Q%%;*} CLI_MCP_Q=${CLI_MCP_Q#*;}
[[ $CLI_MCP_N == FUNCNEST ]] && CLI_MCP_M=
while (( CLI_MCP_C-- > 0 )); do CLI_MCP_P "$CLI_MCP_N"; done
done
[[ $CLI_MCP_M ]] && FUNCNEST=$CLI_MCP_M
fi
\printf '%s\0' "$CLI_MCP_B" "$CLI_MCP_S" "$PWD"
[[ ${SECONDS-} ]]
\printf 'V\0'; \declare -p; \printf '\0'
[[ ${IFS@a} == *r* ]] || IFS=$' \t\n'
\set -f
[[ $CLI_MCP_I ]] && \printf 'I\0\0'
\printf 'P\0'; [[ $# != 0 ]] && \printf '%q ' "$@"; \printf '\0'
for CLI_MCP_N in $(\compgen -A function); do [[ $CLI_MCP_N == *=* ]] || { \printf 'F%s\0' "$CLI_MCP_N"; \declare -f -- "$CLI_MCP_N"; \printf '\0'; }; done
\printf 'G\0'; \declare -F; \printf '\0'
\printf 'A\0'; \declare -p BASH_ALIASES; \printf '\0'
\printf 'H\0'; \declare -p BASH_CMDS; \printf '\0'
\printf 'U\0'; \umask; \printf '\0'
for CLI_MCP_N in S H; do for CLI_MCP_L in c d e f i l m n q r s t u v x; do \printf 'L%s%s\0' $CLI_MCP_N $CLI_MCP_L; \ulimit -$CLI_MCP_N$CLI_MCP_L; \printf '\0'; done; done
\unset -f pwd complete type eval; \enable pwd complete type
for CLI_MCP_N in $(\compgen -A function); do [[ $CLI_MCP_N == *=* ]] && { \printf 'T%s\0' "$CLI_MCP_N"; \type -- "$CLI_MCP_N"; \printf '\0'; }; done
\printf 'C\0'; \complete -p; \printf '\0'
\printf 'S\0'; for ((CLI_MCP_C = ${#DIRSTACK[@]} - 1; CLI_MCP_C > 0; CLI_MCP_C--)); do \printf '%q ' "${DIRSTACK[CLI_MCP_C]}"; done; \printf '\0'
\printf 'D\0'; if [[ $PWD == /* && $PWD -ef . ]]; then \printf '%s\n' "$PWD"; else \pwd -P || \printf '%s\n' "$PWD"; fi; \printf '\0'
[[ $CLI_MCP_E ]] || \printf 'END\0'
[[ $CLI_MCP_X ]] || { CLI_MCP_D=; for ((CLI_MCP_C = 64; CLI_MCP_C > 0; CLI_MCP_C--)); do CLI_MCP_D='"${CLI_MCP_N+'$CLI_MCP_D'}"'; done; \eval "CLI_MCP_D=$CLI_MCP_D"; }
"#;
