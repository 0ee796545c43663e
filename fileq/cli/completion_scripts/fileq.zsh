#compdef fileq
# fileq completion for zsh: fileq completion zsh > ~/.zfunc/_fileq, with ~/.zfunc in fpath before compinit
_fileq() {
    local -a lines found
    lines=("${(@f)$(fileq __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    found=("${(@)${(@)lines[2,-1]//:/\\:}/$'\t'/:}")
    case $lines[1] in
        (files|directories)
            [[ -n $lines[2] ]] && compset -P "${(b)lines[2]}"
            if [[ $lines[1] == files ]]; then _files; else _files -/; fi ;;
        (words) _describe fileq found ;;
        (keys) _describe fileq found -S '' ;;
    esac
}
if [[ $funcstack[1] == _fileq ]]; then _fileq "$@"; else compdef _fileq fileq; fi
