# Completes lockrun's command line in bash. After the program's name, the program's own completion is used if it has
# one.
_lockrun() {
  local cur prev words cword
  _init_completion -n = || return

  local with_value=' -n --nproc-per-node --ps --workers --nnodes --node-rank --master-addr --master-port --gpus --share-gpu --devices --flight-dir --max-restarts --grace-period --report '
  local alone='--allow-worker-failures --standalone --no-prefix --no-fold --no-terminal --no-bind -h --help --version'
  case ${words[1]-} in
    diagnose | topology)
      if ((cword > 1)); then
        COMPREPLY=($(compgen -W --json -- "$cur"))
        [[ ${words[1]} = topology || $cur = -* ]] || _filedir -d
        return
      fi
      ;;
  esac

  local at
  for ((at = 1; at < cword; at++)); do  # to the first word that is not a flag
    case ${words[at]} in
      --) at=$((at + 1)) && break ;;
      -*) [[ $with_value != *" ${words[at]} "* ]] || at=$((at + 1)) ;;
      *) break ;;
    esac
  done
  if ((at < cword)) || { ((at == cword)) && [[ $prev = -- ]]; }; then
    _command_offset "$at"
  elif ((at > cword)); then
    case $prev in
      -n | --nproc-per-node) COMPREPLY=($(compgen -W 'auto cpu gpu' -- "$cur")) ;;
      --gpus) COMPREPLY=($(compgen -W 'auto all none' -- "$cur")) ;;
      --devices) COMPREPLY=($(compgen -W 'cpu:2x cuda:0:2x' -- "$cur")) ;;
      --master-addr) _known_hosts_real -- "$cur" ;;
      --flight-dir) _filedir -d ;;
      --report) _filedir ;;
    esac
  elif [[ $cur = -* ]]; then
    COMPREPLY=($(compgen -W "$with_value $alone" -- "$cur"))
  else
    _command_offset "$at"
    ((cword > 1)) || COMPREPLY+=($(compgen -W 'diagnose topology' -- "$cur"))
  fi
}
complete -F _lockrun lockrun
