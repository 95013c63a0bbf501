# Completion of hpn for bash.  The words come from the help of the installed program.

# Run hpn as a person does, even in a shell with CNI's variables.
_hpn_ask() { env -u CNI_COMMAND "${COMP_WORDS[0]}" "$@" </dev/null 2>&1; }

_hpn_options() { grep --only-matching --extended-regexp -- '(^|[[ |(])--[a-z][a-z-]+' | tr -d '[ |('; }

_hpn() {
    local word=${COMP_WORDS[COMP_CWORD]} command=("${COMP_WORDS[@]:1:1}") help words=
    [[ ! ${command[0]} =~ ^(ipam|fabric)$ ]] || command=("${COMP_WORDS[@]:1:2}")
    COMPREPLY=()
    if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [[ ${command[0]} == help ]]; }; then
        words=$(_hpn_ask help | sed -n 's/^  hpn \([a-z]*\)  .*/\1/p')
    elif [[ ${command[0]} =~ ^(ipam|fabric)$ ]] && ((COMP_CWORD == 2)); then
        words=$(_hpn_ask "${command[0]}" --help | sed -n '1,/}/s/.*{\([a-z,-]*\)}.*/\1/p' | tr , ' ')
    elif [[ $word == -* && ${command[0]} =~ ^[a-z]+$ && ${command[-1]} =~ ^[a-z][a-z-]+$ ]]; then
        words=$(_hpn_ask help | grep "^  hpn ${command[0]} " | _hpn_options)
        # A command without a help of its own fails.
        ! help=$(_hpn_ask "${command[@]}" --help) || words+=" $(_hpn_options <<<"$help")"
    fi
    # Without a word, bash offers files, which many options need.
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word" | sort --unique)
}

complete -o default -F _hpn hpn
