#include <windows.h>

/* Let a CPython's DLL, which is loaded already, learn about files faster than by Wine's own function. */
void answer_for_wine(HMODULE python);
